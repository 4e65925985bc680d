/// How the ranks of a node are spread over the memory (NUMA) nodes of its machine, and which sums
/// go from one memory node to the next. Pure: the same on every rank of the node.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/negotiation/signature.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"

namespace hora::internal {

/// Memory node i has the local ranks [i * ranks, (i + 1) * ranks).
struct MemoryNodes {
  int count = 1;  ///< 1: all ranks are taken as one memory node's
  int ranks = 0;  ///< of each, where there are several
  bool operator==(const MemoryNodes&) const = default;

  /// A sum shorter than this takes one pass over all ranks, which waits for no rank.
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

  /// The memory nodes of one node's ranks. `of_rank`: by local rank, the number of the only memory
  /// node whose processors it may use; negative: it may use those of several, or none is known.
  /// Several only where each has the same number of ranks, two or more, next to each other.
  static MemoryNodes of(std::span<const int> of_rank);
  /// Of a set, all in one where it has several nodes. `of_rank`: likewise, by world rank.
  static MemoryNodes of(const Topology& set, std::span<const int> of_rank);

  /// Whether an allreduce of `bytes` bytes of this kind goes by memory nodes, if no rank of the
  /// node has joined. Not what is scaled before it is summed, nor types whose sums are wider than
  /// their elements: a sum of some ranks would have to be kept elsewhere than in the tensor.
  bool sum_apart(const Signature& signature, std::size_t bytes) const;
  bool sum_apart(const BoundUnit& unit) const;
};

/// By world rank: the number of its memory node in its node, each of `ranks` consecutive ones.
std::vector<int> virtual_memory_nodes(const Topology& world, int ranks);

}  // namespace hora::internal
