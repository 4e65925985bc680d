/// A sum over the ranks of a node that has several memory (NUMA) nodes.
#pragma once

#include <cstddef>

#include "core/control_block/node_progress.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// The allreduce of a unit for which MemoryNodes::sum_apart holds, with the bits of one pass over
/// all ranks (MemoryGroup::run), whose order of summation it keeps.
///
/// The i-th ranks of all memory nodes own slice i of as many as a memory node has ranks. In steps:
/// that of the first one sums its memory node's ranks, into its own tensor; that of the next adds
/// its own memory node's to what it reads there, and so on; that of the last one has the result,
/// and writes it to its memory node's ranks; the others read it there, and write it to theirs. A
/// rank writes into its own memory node alone, and reads of others one slice of what was summed and
/// one of the result: of K ranks a memory node, each reads there 2/K of a tensor in place of all
/// tensors of other memory nodes.
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
