/// This process's GPU, which all its process sets share: memory for buffers, the order with
/// callers' streams, the detection of failures; and the launches of a process set on NCCL's stream,
/// and their order.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "core/control_block/launch_ticket_lock.h"
#include "core/engine/interfaces.h"
#include "core/engine/operations.h"
#include "ops/cuda/stream.h"
#include "ops/hierarchy/groups.h"
#include "ops/nccl/communicator.h"

namespace hora::internal {

/// Detects that collectives on the device have failed: their events are late, or the communicator
/// reports an error. Thread rule: the thread that holds the engine's lock.
class DeviceWatch {
 public:
  using Time = std::chrono::nanoseconds;
  using Clock = Time (*)();
  /// `limit`: how long something may be under way; 0: without limit.
  DeviceWatch(const CudaFunctions& cuda, int index, const NcclCommunicators& communicators,
              EventPool& events, Time limit, Clock clock)
      : cuda_(cuda),
        index_(index),
        communicators_(communicators),
        events_(events),
        limit_(limit),
        clock_(clock) {}

  /// `stream`, always the same one, has been given a collective.
  void add(cudaStream_t stream);
  /// True while anything is under way. Throws Error(transport); a PeerFailure where it is late.
  bool check();
  /// Time at which something begins to wait for other ranks.
  Time start() const { return clock_(); }
  /// Throws PeerFailure where what began to wait at `since` has waited for too long.
  void check_wait(Time since) const;

 private:
  struct PendingEvent {
    std::shared_ptr<Event> event;
    Time since;
  };
  bool is_too_long(Time waited) const { return limit_.count() > 0 && waited > limit_; }

  const CudaFunctions& cuda_;
  int index_;
  const NcclCommunicators& communicators_;
  EventPool& events_;
  Time limit_;
  Clock clock_;
  Time next_look_{};
  std::deque<PendingEvent>
      pending_;  ///< at most two: the oldest, and one that moves on with the stream
};

/// Thread rule: as DevicePort.
class NcclDevice final : public DevicePort {
 public:
  /// References outlive it.
  NcclDevice(const CudaFunctions& cuda, const NcclFunctions& nccl, int index, cudaStream_t stream,
             NcclCommunicators& communicators, NcclBuffers& buffers, EventPool& events,
             DeviceWatch& watch)
      : cuda_(cuda),
        nccl_(nccl),
        index_(index),
        stream_(stream),
        communicators_(communicators),
        buffers_(buffers),
        events_(events),
        watch_(watch) {}

  /// After end(). Frees buffers that were not released, as an exception leaves them; after a
  /// failure they stay: peers may still write to them.
  ~NcclDevice() override;
  NcclDevice(const NcclDevice&) = delete;
  NcclDevice& operator=(const NcclDevice&) = delete;

  BegunOnDevice begin(const std::byte* data, void* stream,
                      std::optional<void*> output_stream) override;
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data, const WithEngineLock& locked) noexcept override;
  bool check() override;
  void abort() noexcept override;
  /// All ranks have done all their collectives, but for what their GPUs still run: closes all
  /// communicators. Collective. Throws Error(transport) where that is not done by the deadline.
  void close(NcclCommunicator::Deadline deadline);
  /// Ends what NCCL has under way, whether or not peers come: no collective is waited for any more.
  void end() noexcept;

 private:
  void wait_for_device(const WithEngineLock& locked);
  std::optional<RegisteredMemory> take(std::byte* data, const WithEngineLock& locked);

  const CudaFunctions& cuda_;
  const NcclFunctions& nccl_;
  int index_;
  cudaStream_t stream_;  ///< of collectives
  NcclCommunicators& communicators_;
  NcclBuffers& buffers_;
  EventPool& events_;
  DeviceWatch& watch_;
  bool failed_ = false;
};

/// Collectives of all sets run on one stream, so that a GPU does them in the order in which it got
/// them. Thread rules: the parts'.
struct NcclContext {
  /// `events`: that many are made at once; `timeout`: see DeviceWatch. The tables outlive it.
  NcclContext(const CudaFunctions& cuda_functions, const NcclFunctions& nccl_functions, int index,
              std::size_t event_count, DeviceWatch::Time timeout)
      : cuda(cuda_functions),
        nccl(nccl_functions),
        device(index),
        events(cuda, event_count),
        stream(cuda, kUrgentPriority),
        watch(cuda, device, communicators, events, timeout, now),
        port(cuda, nccl, device, stream.get(), communicators, buffers, events, watch),
        heap(cuda, device, events, stream.get()),
        identity(cuda, stream, heap) {}

  const CudaFunctions& cuda;
  const NcclFunctions& nccl;
  int device;
  NcclCommunicators communicators;
  EventPool events;
  CudaStream stream;
  DeviceWatch watch;
  NcclBuffers buffers;
  NcclDevice port;
  StreamHeap heap;
  IdentityElements identity;
};

/// Launches begin in the order in which they are made, each when the communicator has accepted the
/// one before (it never blocks), and in a turn among the process sets where it is said to take one.
/// Thread rule: the thread that holds the engine's lock; outlives the completions.
class NcclLaunches {
 public:
  using Step = std::function<void()>;
  using LastStep = std::function<const Event*()>;

  /// How the communicator is made, if it is not there yet: as the first launch, in a turn.
  struct Connection {
    Step announce;  ///< before the turn is asked for
    Step begin;
  };

  /// References outlive it.
  NcclLaunches(NcclContext& context, NcclCommunicator& communicator, LaunchTicketLock ticket_lock,
               Connection connection = {})
      : context_(context),
        communicator_(communicator),
        ticket_lock_(ticket_lock),
        connection_(std::move(connection)) {}

  /// `enqueue` calls NCCL; `enqueued` follows once NCCL has accepted that; then the event that it
  /// returns, if any, is waited for. Both with the device as the current one.
  Completion launch(bool takes_turn, Step enqueue, LastStep enqueued);
  /// Watches what was put on the stream so far: see DeviceWatch.
  void watch() { context_.watch.add(stream()); }

  NcclContext& context() const { return context_; }
  const CudaFunctions& cuda() const { return context_.cuda; }
  const NcclFunctions& nccl() const { return context_.nccl; }
  ncclComm_t communicator() const { return communicator_.get(); }
  void name_background(std::string_view what) { communicator_.name_background(what); }
  cudaStream_t stream() const { return context_.stream.get(); }

 private:
  class Launch;

  bool is_next(std::uint64_t ticket);

  NcclContext& context_;
  NcclCommunicator& communicator_;
  LaunchTicketLock ticket_lock_;
  Connection connection_;
  Completion connecting_;
  std::uint64_t next_ = 0;  ///< tickets
  std::uint64_t launched_ = 0;
};

}  // namespace hora::internal
