/// LocalGroup on the GPUs of a node, by NCCL.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/cuda/device_trace.h"
#include "ops/cuda/event.h"
#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"
#include "ops/hierarchy/groups.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/device.h"
#include "ops/nccl/slice_staging.h"

namespace hora {

struct NcclGroupOptions {
  int device = 0;
  int local_rank = 0;
  int local_size = 1;
  int slices = 1;               ///< as the pipeline cuts a chunk
  std::size_t slots = 0;        ///< likewise; 0 in jobs of one node
  std::size_t chunk_bytes = 0;  ///< of the longest chunk
  /// The cross group takes the GPU's memory.
  bool device_staging = false;
  Tracer trace = {};

  /// Bytes of the longest slice.
  std::size_t slice_bytes() const;
};

/// One node: one all-reduce in place for each tensor of a unit. Several nodes, for each chunk:
///
///   collectives' stream:  pack -> reduce-scatter                     all-gather -> unpack
///   slice_staging.h:                          my slice out ..  .. in
///   engine:                                           the cross group
///
/// The streams are ordered by events; the host waits, by polling, for the one alone that lets the
/// cross group begin. Calls of NCCL begin in the order in which the group is called, each when the
/// communicator has taken in the one before (it never blocks).
/// Thread rule: the thread that holds the engine's lock.
class NcclGroup final : public LocalGroup {
 public:
  /// References outlive it. The communicator's ranks are the node's local ranks. Allocates all
  /// slots; throws Error(out_of_memory).
  NcclGroup(const NcclGroupOptions& options, const CudaFunctions& cuda, const NcclFunctions& nccl,
            NcclCommunicator& communicator, DeviceWatch& watch);

  bool is_collective() const override { return true; }
  std::byte* staging(std::size_t slot, std::size_t bytes) override;
  Completion run(const BoundUnit& unit) override;
  Completion reduce_scatter(const ChunkPart& part) override;
  Completion all_gather(const ChunkPart& part) override;

 private:
  class Launch;
  using Step = std::function<void()>;
  using LastStep = std::function<const Event*()>;

  /// `enqueue` calls NCCL; `enqueued` goes on once NCCL has taken that in; then the event that it
  /// returns, if any, is waited for.
  Completion launch(Step enqueue, LastStep enqueued);
  void trace_begin(const ChunkPart& part, std::string_view phase);
  StagedSlice my_slice(const ChunkPart& part);
  void await_tensors(const ChunkPart& part);
  void copy_tensors(const ChunkPart& part, bool out_of_tensors);
  void scatter(const ChunkPart& part);
  void gather(const ChunkPart& part);

  NcclGroupOptions options_;
  const CudaFunctions& cuda_;
  const NcclFunctions& nccl_;
  NcclCommunicator& communicator_;
  DeviceWatch& watch_;
  Stream collectives_;
  DeviceTrace trace_;
  std::vector<DeviceMemory> chunks_;  ///< by slot: a whole chunk, its slices of equal length
  std::unique_ptr<SliceStaging> staging_;
  std::uint64_t next_launch_ = 0;  ///< tickets of launches
  std::uint64_t launched_ = 0;
};

}  // namespace hora
