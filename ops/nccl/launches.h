/// The stream that NCCL runs on, and the order in which its calls begin.
#pragma once

#include <cstdint>
#include <functional>

#include "ops/cuda/event.h"
#include "ops/cuda/stream.h"
#include "ops/hierarchy/completion.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/device.h"

namespace hora {

/// Launches begin in the order in which they are made, each when the communicator has taken in the
/// one before (it never blocks). Thread rule: the thread that holds the engine's lock; outlives the
/// completions.
class NcclLaunches {
 public:
  using Step = std::function<void()>;
  using LastStep = std::function<const Event*()>;

  /// References outlive it.
  NcclLaunches(const CudaFunctions& cuda, const NcclFunctions& nccl, int device,
               NcclCommunicator& communicator, DeviceWatch& watch)
      : cuda_(cuda),
        nccl_(nccl),
        device_(device),
        communicator_(communicator),
        watch_(watch),
        stream_(cuda, kUrgentPriority) {}

  /// `enqueue` calls NCCL; `enqueued` goes on once NCCL has taken that in; then the event that it
  /// returns, if any, is waited for. Both with the device as the current one.
  Completion launch(Step enqueue, LastStep enqueued);
  /// What was put on the stream so far is watched: see DeviceWatch.
  void watch() { watch_.add(stream_.get()); }

  const CudaFunctions& cuda() const { return cuda_; }
  const NcclFunctions& nccl() const { return nccl_; }
  ncclComm_t communicator() const { return communicator_.get(); }
  cudaStream_t stream() const { return stream_.get(); }

 private:
  class Launch;

  const CudaFunctions& cuda_;
  const NcclFunctions& nccl_;
  int device_;
  NcclCommunicator& communicator_;
  DeviceWatch& watch_;
  CudaStream stream_;
  std::uint64_t next_ = 0;  ///< tickets
  std::uint64_t launched_ = 0;
};

}  // namespace hora
