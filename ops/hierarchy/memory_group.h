/// Operations among the ranks of a node on memory that this process can address directly: shared
/// windows, or threads in tests.
#pragma once

#include <cstddef>
#include <vector>

#include "core/control_block/node_progress.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// The operation inside a node: Adasum is between nodes.
ReduceOp op_in_node(const Unit& unit);

/// Each local rank reads its slice straight from all peers' memory, in local rank order, and writes
/// the result straight into all of it. Slices do not overlap, so no rank waits for another inside a
/// unit; everything is complete when the call returns. Thread rule: one thread at a time.
class MemoryGroup final : public LocalGroup {
 public:
  MemoryGroup(int local_rank, int local_size) : local_rank_(local_rank), local_size_(local_size) {}

  bool is_collective() const override { return false; }
  /// Of a slice of one tensor: where that lies on this rank, which alone reads and writes it there
  /// until all_gather(); of a broadcast's input, where it lies on the root. Else memory of its own.
  std::byte* staging(const ChunkPart& part) override;
  Completion run(const BoundUnit& unit) override;
  Completion reduce_scatter(const ChunkPart& part) override;
  Completion all_gather(const ChunkPart& part) override;

 private:
  std::byte* in_slot(std::size_t slot, std::size_t bytes);

  int local_rank_;
  int local_size_;
  std::vector<std::vector<std::byte>> staging_;  ///< by slot
};

/// The root makes readable what it has not yet (BoundUnit::publishes), step by step; ranks that
/// fetch follow it on its progress, so that both copy at the same time; the other ranks' memory is
/// filled by all, each writing a slice, when all of the data is readable.
class BroadcastInNode final : public PendingWork {
 public:
  /// Unit and group outlive it.
  BroadcastInNode(const BoundUnit& unit, UnitProgress progress, LocalGroup& group, int local_rank);
  bool poll() override;

 private:
  void publish();
  void fetch(std::size_t readable);

  const BoundUnit& unit_;
  UnitProgress progress_;
  LocalGroup& group_;
  bool is_root_;
  bool is_followed_;
  std::size_t fetched_ = 0;  ///< of the unit's bytes
};

}  // namespace hora::internal
