/// What averaging gives, to the bit, from all ranks' values.
#pragma once

#include <hora/torch.h>

#include <functional>

namespace hora::test {

/// Sums as collectives.h says: in float32 (float64 for that type) over a node's ranks in their
/// order, rounded to the wire type where there are several nodes, then over nodes in their order;
/// times 1/size, rounded. `of_rank(r)`: rank r's values, in the type they travel in.
inline torch::Tensor average_model(const Context& world,
                                   const std::function<torch::Tensor(int)>& of_rank) {
  const auto wire = of_rank(0).scalar_type();
  const auto sum_type = wire == torch::kDouble ? torch::kDouble : torch::kFloat;
  torch::Tensor sum;
  for (int node = 0; node < world.cross_size(); ++node) {
    torch::Tensor of_node;
    for (const int rank : world.ranks_of_node(node)) {
      const auto values = of_rank(rank).to(sum_type);
      of_node = of_node.defined() ? of_node + values : values;
    }
    if (world.cross_size() > 1) of_node = of_node.to(wire).to(sum_type);
    sum = sum.defined() ? sum + of_node : of_node;
  }
  return (sum * (1.0 / world.size())).to(wire);
}

}  // namespace hora::test
