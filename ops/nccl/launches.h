/// The launches of a process set on the stream of NCCL, and their order.
///
/// This process's GPU: what all its process sets have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "core/control_block/launch_ticket_lock.h"
#include "core/engine/operations.h"
#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"
#include "ops/hierarchy/groups.h"
#include "ops/nccl/buffers.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/device.h"
#include "ops/nccl/reduction.h"

namespace hora::internal {

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
  /// What was put on the stream so far is watched: see DeviceWatch.
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
