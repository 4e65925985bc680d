#include "core/negotiation/topology.h"

#include <limits>
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
  Topology result{.ranks_of_node = {}, .radix = world.radix};
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

namespace {

/// Nodes of a whole subtree of `node`: what its last digit that is not 0 stands for; of the root,
/// `nodes`.
int subtree_width(int node, int nodes, int radix) {
  if (node == 0) return nodes;
  int width = 1;
  while (node / width % radix == 0) width *= radix;
  return width;
}

}  // namespace

int tree_parent(int node, int radix) {
  if (node == 0) return -1;
  const int width = subtree_width(node, 0, radix);
  return node - node / width % radix * width;
}

std::vector<int> tree_children(int node, int nodes, int radix) {
  std::vector<int> children;
  const int end = std::min(nodes - node, subtree_width(node, nodes, radix));
  for (int width = 1; width < end; width *= radix) {
    for (int child = width; child < std::min(end, width * radix); child += width) {
      children.push_back(node + child);
    }
  }
  std::ranges::reverse(children);
  return children;
}

std::vector<int> tree_subtree(int node, int nodes, int radix) {
  const int most = subtree_width(node, nodes, radix);
  std::vector<int> members(static_cast<std::size_t>(std::min(most, nodes - node)));
  std::iota(members.begin(), members.end(), node);
  return members;
}

int tree_radix(int nodes, int hop) {
  constexpr int kMostChildren = 32;  // radix - 1 of them where there are so many nodes
  int best = 2, earliest = std::numeric_limits<int>::max();
  std::vector<int> arrival(static_cast<std::size_t>(nodes));
  for (int radix = 2; radix <= std::min(nodes, kMostChildren + 1); ++radix) {
    if (std::ssize(tree_children(0, nodes, radix)) > kMostChildren) continue;
    for (int node = 0; node < nodes; ++node) {
      int sent = arrival[static_cast<std::size_t>(node)];
      for (const int child : tree_children(node, nodes, radix)) {
        arrival[static_cast<std::size_t>(child)] = ++sent + hop;
      }
    }
    const int last = std::ranges::max(arrival);
    if (last < earliest) best = radix, earliest = last;
  }
  return best;
}

}  // namespace hora::internal
