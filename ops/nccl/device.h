/// This process's GPU: memory for buffers, the order with callers' streams, and the detection of
/// failures of what runs on it.
#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "core/engine/interfaces.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/buffers.h"
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
  /// What NCCL has under way ends, whether or not peers come: no collective is waited for any more.
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

}  // namespace hora::internal
