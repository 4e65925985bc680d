/// Whether sums by memory nodes are worth it on this machine: tried.
#pragma once

#include <chrono>
#include <vector>

#include "core/engine/interfaces.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"
#include "ops/cross/point_to_point.h"

namespace hora::internal {

/// `nodes`, or one for all ranks where a sum by memory nodes (MemoryNodeSum) of 4 MiB takes as long
/// as one pass over all ranks, or nearly: how much slower memory of another node is differs by
/// machine. Both take turns; the slowest rank's times count, and of them the median. Collective
/// over the ranks of one node, by local rank, whose `memory` is connected; the same on all. Takes
/// some tens of milliseconds; where a rank does not go on for `patience`, the sum counts as slow.
/// Throws Error(transport).
MemoryNodes tried_memory_nodes(Bootstrap& ranks, NodeMemory& memory, MemoryNodes nodes,
                               std::chrono::milliseconds patience = std::chrono::seconds(1));

/// By rank, the memory nodes that the job's sums go by: `found` (memory_node_of_process()) where a
/// job of one node has several that are worth it, else none; or those of `setting`
/// (HORA_RANKS_PER_MEMORY_NODE) where that is not 0. Collective over all ranks.
std::vector<int> memory_nodes_of_sums(Bootstrap& world, const Topology& topology,
                                      NodeMemory& memory, std::vector<int> found, int setting);

/// From the seconds of both. Pure.
bool is_worth_it(double one_pass, double by_memory_nodes);

}  // namespace hora::internal
