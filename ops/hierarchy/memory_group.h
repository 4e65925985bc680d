/// Operations among the ranks of a node on memory that this process can address directly (shared
/// windows, or threads in tests), in one pass or by memory (NUMA) nodes.
#pragma once

#include <cstddef>
#include <vector>

#include "core/control_block/node_progress.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// Each local rank reads its slice straight from all peers' memory, in local rank order, and writes
/// the result straight into all of it. Slices do not overlap, so no rank waits for another inside a
/// unit; everything is complete when the call returns. Thread rule: one thread at a time.
class MemoryGroup final : public LocalGroup {
 public:
  MemoryGroup(int local_rank, int local_size) : local_rank_(local_rank), local_size_(local_size) {}

  bool is_collective() const override { return false; }
  /// The place of a slice of one tensor on this rank, which alone reads and writes it there until
  /// all_gather(); a broadcast's input on the root. Else memory of its own.
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

/// The allreduce of a unit for which MemoryNodes::sum_apart holds, with the bits of
/// MemoryGroup::run. The i-th ranks of all memory nodes own slice i. The first sums its memory
/// node's ranks into its own tensor; the next adds its own node's to what it reads there, and so
/// on; the last has the result and writes it to its node's ranks; the others read it there and
/// write it to theirs. So each of K ranks of a memory node reads 2/K of a tensor of other nodes.
/// Thread rule: the thread that holds the engine's lock.
class MemoryNodeSum final : public PendingWork {
 public:
  /// The unit outlives it, and has a number. Tensors of a rank of another memory node than this
  /// one's stay unused but for those of its i-th ranks.
  MemoryNodeSum(const BoundUnit& unit, MemoryNodes nodes, int local_rank, UnitProgress progress);
  bool poll() override;

 private:
  bool sum_step();
  bool take_step();
  Range next_step(std::size_t done) const;
  int rank_of(int memory_node) const { return memory_node * nodes_.ranks + index_; }
  bool is_last() const { return own_ == nodes_.count - 1; }

  const BoundUnit& unit_;
  const MemoryNodes nodes_;
  const int own_;    ///< memory node
  const int index_;  ///< of this rank in it
  const Range slice_;
  UnitProgress progress_;
  std::size_t summed_ = 0;  ///< of the slice: what this rank has added to
  std::size_t taken_ = 0;   ///< of the slice: results that its memory node has
};

}  // namespace hora::internal
