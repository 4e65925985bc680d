/// Which ranks form a node: those that can map each other's windows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/negotiation/topology.h"
#include "ops/cross/point_to_point.h"
#include "ops/shm/shared_memory.h"

namespace hora::internal {

/// The world cut into nodes, and this rank's memory connected to its node's.
struct NodeDiscovery {
  Topology topology;
  std::unique_ptr<SharedMemory> memory;
  int host_rank = 0;  ///< this rank's place among the ranks of its host, virtual nodes or not
  int host_size = 1;
  std::uint64_t smallest_memory = 0;  ///< bytes of the host, of all, that has fewest
  bool over_sockets = false;          ///< there are several hosts, and none has an active RDMA port
  std::vector<int> memory_nodes = {};  ///< by rank: memory_node_of_process()
};

/// Groups of candidates: each candidate joins the first group all of whose members it can reach and
/// who can reach it, else it begins a group. `reach[i][j]`: candidate i has mapped j's window.
/// Gives for each candidate the first member of its group. Pure.
std::vector<int> group_by_reach(const std::vector<std::vector<bool>>& reach);

/// What to tell the user where a host's ranks are not one group: the groups, by their ranks in the
/// job (`ranks`, by candidate), and the first of the candidates' `reasons` that is not empty. Empty
/// where they are one. Pure.
std::string separation_text(const std::vector<int>& group, const std::vector<int>& ranks,
                            const std::vector<std::string>& reasons);

/// Finds the nodes; a rank that cannot map its host's others becomes a node of its own, with a
/// warning. Groups are cut into virtual nodes of `ranks_per_node` (0: whole hosts). Collective.
/// Throws Error(transport).
NodeDiscovery discover_nodes(Bootstrap& world, int ranks_per_node);

}  // namespace hora::internal
