/// Which rank is in which node, the tree along which readiness goes up, and a leader's place in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// The world cut into nodes. Nodes are ordered by their lowest world rank; ranks within a node
/// ascend. The ranks of a node share memory windows; its first rank is its leader.
struct Topology {
  std::vector<std::vector<int>> ranks_of_node;
  int radix = 2;  ///< of the tree of nodes; at least 2

  int nodes() const { return static_cast<int>(ranks_of_node.size()); }
  int size() const {
    int count = 0;
    for (const auto& ranks : ranks_of_node) count += static_cast<int>(ranks.size());
    return count;
  }
  int node_of(int world_rank) const;  ///< -1 for an unknown rank
  int local_rank_of(int world_rank) const {
    const int node = node_of(world_rank);
    if (node < 0) return -1;
    const auto& ranks = ranks_of_node[static_cast<std::size_t>(node)];
    return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), world_rank) -
                            ranks.begin());
  }
  int index_of(int world_rank) const;  ///< ranks below it
  /// Ranks of the smallest node: the number of slices.
  int smallest_node() const {
    std::size_t least = ranks_of_node.empty() ? 0 : ranks_of_node.front().size();
    for (const auto& ranks : ranks_of_node) least = std::min(least, ranks.size());
    return static_cast<int>(least);
  }
  /// All, ascending.
  std::vector<int> ranks() const {
    std::vector<int> all;
    for (const auto& ranks : ranks_of_node) all.insert(all.end(), ranks.begin(), ranks.end());
    std::sort(all.begin(), all.end());
    return all;
  }
};

/// Topology from each world rank's host group (any labels, such as the group's lowest rank), its
/// groups cut further into pieces of at most `ranks_per_node` (0: no limit) consecutive ranks.
Topology make_topology(const std::vector<int>& group_of_rank, int ranks_per_node);

/// The part of the world that `members` (world ranks) are; nodes without any are left out.
Topology restricted(const Topology& world, const std::vector<int>& members);

/// With the ranks numbered 0, 1, .. in their order.
Topology renumbered(const Topology& topology);

/// The k-nomial tree on 0 .. nodes-1 with root 0, where k is `radix`: a node's parent is the node
/// without its last digit that is not 0, in base k. log_k(nodes) hops, (k - 1) log_k(nodes)
/// children of the root (2: binomial).
int tree_parent(int node, int radix);  ///< -1 for the root
/// That of the largest subtree first, as it is the one to wait for.
std::vector<int> tree_children(int node, int nodes, int radix);
/// `node` and everything below it, ascending.
std::vector<int> tree_subtree(int node, int nodes, int radix);

/// The time from one node's send to the other's work on it, in messages that a leader sends or
/// takes in that time.
constexpr int kSocketHop = 12;
constexpr int kRdmaHop = 4;
/// The radix of the tree in which a message of the root is first with all `nodes` (at least 1),
/// where `hop` is such a time; of several the least. The root has at most 32 children. (Model:
/// LogP, Culler et al. 1993.)
int tree_radix(int nodes, int hop);

/// A leader's place in the tree: the ranks that it represents (its *subtree*: its node and what
/// lies below), and its children. Local ranks count within the node. Thread rule: immutable.
class TreePosition {
 public:
  TreePosition(Topology topology, int node)
      : topology_(std::move(topology)),
        node_(node),
        children_(tree_children(node, topology_.nodes(), topology_.radix)) {}

  int node() const { return node_; }
  int nodes() const { return topology_.nodes(); }
  bool is_root() const { return node_ == 0; }
  /// Nodes; that of the largest subtree first.
  const std::vector<int>& children() const { return children_; }
  /// World ranks by local rank.
  const std::vector<int>& local_ranks() const {
    return topology_.ranks_of_node[static_cast<std::size_t>(node_)];
  }
  std::size_t local_size() const { return local_ranks().size(); }
  LocalRanks whole_node() const { return all_local_ranks(local_size()); }
  /// World ranks of `node` and everything below it, ascending.
  std::vector<int> ranks_in_subtree(int node) const {
    std::vector<int> ranks;
    for (const int member : tree_subtree(node, topology_.nodes(), topology_.radix)) {
      const auto& of_node = topology_.ranks_of_node[static_cast<std::size_t>(member)];
      ranks.insert(ranks.end(), of_node.begin(), of_node.end());
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  /// World ranks of the leader's whole subtree, ascending: of the root's, all.
  std::vector<int> ranks_in_subtree() const { return ranks_in_subtree(node_); }
  /// Ranks of all nodes.
  std::size_t world_size() const { return static_cast<std::size_t>(topology_.size()); }

 private:
  Topology topology_;
  int node_;
  std::vector<int> children_;
};

}  // namespace hora::internal
