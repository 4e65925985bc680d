/// LocalGroup on the GPUs of a node, by NCCL.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ops/cuda/device_trace.h"
#include "ops/cuda/memory.h"
#include "ops/hierarchy/groups.h"
#include "ops/nccl/launches.h"
#include "ops/nccl/slice_staging.h"

namespace hora::internal {

/// Of a communicator of all ranks of a set, whatever their nodes.
struct PlaceInSet {
  int rank = 0;  ///< this one's place among them
  int ranks = 1;
};

struct NcclGroupOptions {
  int device = 0;
  int local_rank = 0;
  int local_size = 1;
  /// The communicator spans nodes, and units run whole; none: its ranks are the local ones.
  std::optional<PlaceInSet> over_nodes = {};
  int slices = 1;               ///< as the pipeline cuts a chunk
  std::size_t slots = 0;        ///< likewise; 0 where units run whole
  std::size_t chunk_bytes = 0;  ///< of the longest chunk
  int most_ctas = 0;            ///< of NCCL's kernels (HORA_NCCL_CTAS); 0: as NCCL chooses
  /// The cross group takes the GPU's memory.
  bool device_staging = false;
  bool allocates_at_once = true;  ///< not at the first chunk
  bool windows = false;  ///< of the world's, all of whose ranks are in one node: see NcclBuffers
  Tracer trace = {};

  /// Bytes of the longest slice.
  std::size_t slice_bytes() const;
  /// Of the communicator.
  PlaceInSet place() const { return over_nodes.value_or(PlaceInSet{local_rank, local_size}); }
};

/// One node, or a communicator that spans nodes: one all-reduce in place for each tensor of a unit,
/// by run(). Several nodes else, for each chunk:
///
///   collectives' stream:  pack -> reduce-scatter                     all-gather -> unpack
///   slice_staging.h:                          slice out ..  .. in
///   engine:                                           the cross group
///
/// Before NCCL values are prepared (reduction.h), in place or as they are packed; the final scale
/// is applied in place, or by the cross group. NCCL is not called for a rank that is alone in its
/// communicator: in place, what it would give is there. A rank that has joined has identity
/// elements in the place of tensors, and copies of those that are apart (WindowPlan). The streams
/// are ordered by events; the host waits, by polling, for the one alone that lets the cross group
/// begin. Thread rule: the thread that holds the engine's lock.
class NcclGroup final : public LocalGroup {
 public:
  /// The launches, whose communicator's ranks are those of the options' place(), outlive it. Throws
  /// Error(out_of_memory).
  NcclGroup(const NcclGroupOptions& options, NcclLaunches& launches);

  bool is_collective() const override { return true; }
  std::byte* staging(const ChunkPart& part) override;
  Completion run(const BoundUnit& unit) override;
  Completion reduce_scatter(const ChunkPart& part) override;
  Completion all_gather(const ChunkPart& part) override;

 private:
  bool is_alone() const { return options_.place().ranks == 1; }
  void allocate();
  void trace_begin(const ChunkPart& part, std::string_view phase);
  StagedSlice own_slice(const ChunkPart& part);
  void await_tensors(const ChunkPart& part);
  void copy_tensors(const ChunkPart& part, bool out_of_tensors);
  void prepare(const BoundUnit& unit, const WindowPlan& plan);
  void pass_over_tensors(const BoundUnit& unit, const std::vector<bool>& left_out,
                         BatchedCopy copy);
  void launch_copy(std::span<const CopyPiece> pieces, BatchedCopy copy);
  std::shared_ptr<std::byte> joined_proxy(const BoundUnit& unit);
  Completion change(const WindowPlan& plan, bool takes_turn);
  void copy_apart(const BoundUnit& unit, const WindowPlan& plan, bool out_of_tensors);
  void call_in_place(const BoundUnit& unit, const WindowPlan& plan);
  void scatter(const ChunkPart& part);
  void gather(const ChunkPart& part);

  NcclGroupOptions options_;
  NcclLaunches& launches_;
  DeviceTrace trace_;
  std::vector<DeviceMemory> chunks_;  ///< by slot: a whole chunk, its slices of equal length
  std::unique_ptr<SliceStaging> staging_;
  /// Of the launch under way: in place of tensors, one after the other. NCCL may put the collective
  /// on the stream only when it has accepted it.
  std::shared_ptr<std::byte> proxy_;
};

}  // namespace hora::internal
