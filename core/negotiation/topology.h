/// Which rank is in which node, and the tree along which readiness goes up.
#pragma once

#include <vector>

namespace hora {

/// The world cut into nodes. Nodes are ordered by their lowest world rank; ranks within a node
/// ascend. The ranks of a node share memory windows; its first rank is its leader.
struct Topology {
  std::vector<std::vector<int>> ranks_of_node;

  int nodes() const { return static_cast<int>(ranks_of_node.size()); }
  int size() const;
  int node_of(int world_rank) const;  ///< -1 for an unknown rank
  int local_rank_of(int world_rank) const;
  int index_of(int world_rank) const;  ///< ranks below it
  int smallest_node() const;           ///< ranks of the smallest node: the number of slices
};

/// Topology from each world rank's host group (any labels, such as the group's lowest rank), its
/// groups cut further into pieces of at most `ranks_per_node` (0: no limit) consecutive ranks.
Topology make_topology(const std::vector<int>& group_of_rank, int ranks_per_node);

/// The part of the world that `members` (world ranks) are; nodes without any are left out.
Topology restricted(const Topology& world, const std::vector<int>& members);

/// With the ranks numbered 0, 1, .. in their order.
Topology renumbered(const Topology& topology);

/// The binomial tree on 0 .. nodes-1 with root 0: log2(nodes) hops from any node to the root.
int tree_parent(int node);  ///< -1 for the root
std::vector<int> tree_children(int node, int nodes);
/// `node` and everything below it, ascending.
std::vector<int> tree_subtree(int node, int nodes);

}  // namespace hora
