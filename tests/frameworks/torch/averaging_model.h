/// Averages of all ranks' values, to the bit.
#pragma once

#include <hora/torch.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace hora::internal::test {

/// Sums as collectives.h says: in float32 (float64 for that type) over a node's ranks in their
/// order, rounded to the wire type where there are several nodes, then over nodes in their order;
/// times `scale`, rounded. `members`: ascending world ranks; `of_rank(r)`: rank r's values, in the
/// type they travel in.
inline torch::Tensor sum_model(const Context& world, const std::vector<int>& members, double scale,
                               const std::function<torch::Tensor(int)>& of_rank) {
  const auto wire = of_rank(members.front()).scalar_type();
  const auto sum_type = wire == torch::kDouble ? torch::kDouble : torch::kFloat;
  std::vector<torch::Tensor> of_nodes;
  for (int node = 0; node < world.cross_size(); ++node) {
    torch::Tensor of_node;
    for (const int rank : world.ranks_of_node(node)) {
      if (!std::binary_search(members.begin(), members.end(), rank)) continue;
      const auto values = of_rank(rank).to(sum_type);
      of_node = of_node.defined() ? of_node + values : values;
    }
    if (of_node.defined()) of_nodes.push_back(of_node);
  }
  torch::Tensor sum;
  for (const torch::Tensor& of_node : of_nodes) {
    const auto rounded = of_nodes.size() > 1 ? of_node.to(wire).to(sum_type) : of_node;
    sum = sum.defined() ? sum + rounded : rounded;
  }
  return (sum * scale).to(wire);
}

/// The average over the world.
inline torch::Tensor average_model(const Context& world,
                                   const std::function<torch::Tensor(int)>& of_rank) {
  return sum_model(world, ranks_of(world, kWorld), 1.0 / world.size(), of_rank);
}

}  // namespace hora::internal::test
