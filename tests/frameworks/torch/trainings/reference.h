/// A training on one process with plain LibTorch: every rank's gradients one after another,
/// averaged by hand.
#pragma once

#include <hora/context.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/frameworks/torch/trainings/network.h"

namespace hora::internal::test {

class Reference {
 public:
  /// `members`: the world ranks that train together. Sums are taken in the order and, where
  /// gradients are compressed, with the rounding that collectives.h states, by the world's nodes.
  Reference(const Context& world, const Training& training, std::vector<int> members);

  /// What the members that still take part do, once for all of them.
  void step(int step);

  Network& network() { return network_; }
  bool stepped() const { return stepped_; }  ///< with a scaler: gradients were finite
  double scale() const { return scale_; }
  const std::vector<double>& norms() const { return norms_; }  ///< of each optimizer's gradients

 private:
  /// Of each parameter; undefined where this rank has none.
  std::vector<torch::Tensor> gradients_of(int rank, int step);
  torch::Tensor average(const std::function<torch::Tensor(int)>& of_rank) const;
  void clip(int optimizer);
  void adapt_scale();

  const Context& world_;
  const Training training_;
  const std::vector<int> members_;
  Network network_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  double scale_;
  int finite_steps_ = 0;
  bool stepped_ = true;
  std::vector<double> norms_;
};

}  // namespace hora::internal::test
