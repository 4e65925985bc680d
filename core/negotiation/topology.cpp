#include "core/negotiation/topology.h"

#include <map>
#include <numeric>

namespace hora::internal {

int Topology::node_of(int world_rank) const {
  for (int node = 0; node < nodes(); ++node) {
    const auto& ranks = ranks_of_node[static_cast<std::size_t>(node)];
    if (std::binary_search(ranks.begin(), ranks.end(), world_rank)) return node;
  }
  return -1;
}

int Topology::index_of(int world_rank) const {
  std::ptrdiff_t below = 0;
  for (const auto& ranks : ranks_of_node) {
    below += std::lower_bound(ranks.begin(), ranks.end(), world_rank) - ranks.begin();
  }
  return static_cast<int>(below);
}

Topology make_topology(const std::vector<int>& group_of_rank, int ranks_per_node) {
  std::map<int, std::vector<int>> groups;
  for (std::size_t rank = 0; rank < group_of_rank.size(); ++rank) {
    groups[group_of_rank[rank]].push_back(static_cast<int>(rank));
  }
  Topology topology;
  for (const auto& [group, ranks] : groups) {
    const std::size_t limit =
        ranks_per_node > 0 ? static_cast<std::size_t>(ranks_per_node) : ranks.size();
    for (std::size_t begin = 0; begin < ranks.size(); begin += limit) {
      const std::size_t end = std::min(begin + limit, ranks.size());
      topology.ranks_of_node.emplace_back(ranks.begin() + static_cast<std::ptrdiff_t>(begin),
                                          ranks.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  std::sort(topology.ranks_of_node.begin(), topology.ranks_of_node.end());
  return topology;
}

Topology restricted(const Topology& world, const std::vector<int>& members) {
  Topology result;
  for (const auto& ranks : world.ranks_of_node) {
    std::vector<int> chosen = ranks;
    std::erase_if(chosen, [&](int rank) { return std::ranges::count(members, rank) == 0; });
    if (!chosen.empty()) result.ranks_of_node.push_back(std::move(chosen));
  }
  std::sort(result.ranks_of_node.begin(), result.ranks_of_node.end());
  return result;
}

Topology renumbered(const Topology& topology) {
  Topology result = topology;
  for (auto& ranks : result.ranks_of_node) {
    for (int& rank : ranks) rank = topology.index_of(rank);
  }
  return result;
}

int tree_parent(int node) {
  return node == 0 ? -1 : node & (node - 1);
}

std::vector<int> tree_children(int node, int nodes) {
  std::vector<int> children;
  for (int bit = 1; node + bit < nodes && (node & bit) == 0; bit <<= 1) {
    children.push_back(node + bit);
  }
  return children;
}

std::vector<int> tree_subtree(int node, int nodes) {
  const int most = node == 0 ? nodes : node & -node;
  std::vector<int> members(static_cast<std::size_t>(std::min(most, nodes - node)));
  std::iota(members.begin(), members.end(), node);
  return members;
}

}  // namespace hora::internal
