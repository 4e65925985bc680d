/// The order in which gradients come, learned once for DistributedOptimizerOptions::static_graph.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora {

/// Thread rule: one thread at a time.
class GradientOrder {
 public:
  explicit GradientOrder(std::size_t gradients) : came_(gradients, false) {}

  /// Notes the first time only.
  void note(std::size_t gradient);
  /// Gradients that any rank has, in the order of the first rank that has not joined, last first;
  /// those it has not itself count as the latest. `present`: of each gradient, the same on all
  /// ranks. Collective.
  std::vector<std::size_t> agree(const Peers& peers, const std::string& name,
                                 const std::vector<bool>& present) const;

 private:
  std::vector<std::size_t> order_;
  std::vector<bool> came_;
};

}  // namespace hora
