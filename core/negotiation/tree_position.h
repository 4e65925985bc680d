/// A leader's place in the tree of leaders: for which ranks it speaks, and through which children.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/negotiation/topology.h"

namespace hora {

/// The node whose leader it is, and what lies below it: its *subtree*. Local ranks are numbers of
/// ranks within the node, masks have bit r for local rank r. Pure. Thread rule: immutable.
class TreePosition {
 public:
  TreePosition(Topology topology, int node)
      : topology_(std::move(topology)),
        node_(node),
        children_(tree_children(node, topology_.nodes())) {}

  bool is_root() const { return node_ == 0; }
  /// Nodes, ascending.
  const std::vector<int>& children() const { return children_; }
  /// World ranks by local rank.
  const std::vector<int>& local_ranks() const {
    return topology_.ranks_of_node[static_cast<std::size_t>(node_)];
  }
  std::size_t local_size() const { return local_ranks().size(); }
  /// All local ranks.
  std::uint64_t local_mask() const { return (std::uint64_t{1} << local_size()) - 1; }
  /// World ranks of `node` and everything below it, ascending.
  std::vector<int> ranks_in_subtree(int node) const {
    std::vector<int> ranks;
    for (const int member : tree_subtree(node, topology_.nodes())) {
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

}  // namespace hora
