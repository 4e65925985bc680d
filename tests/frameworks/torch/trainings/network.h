/// The network of a training and the optimizers on it, the same values wherever they are made; and
/// its training on one process.
#pragma once

#include <hora/context.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/frameworks/torch/trainings/training.h"

namespace hora::internal::test {

/// A chain of blocks on rows of 8 numbers, smooth everywhere.
class Network {
 public:
  explicit Network(const Training& training);

  /// In order of registration; what is tied may come twice.
  const torch::OrderedDict<std::string, torch::Tensor>& named() const { return named_; }
  /// Each once.
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  /// Those of one optimizer.
  std::vector<torch::Tensor> parameters_of(int optimizer) const;
  /// LibTorch's; `one_pass`: hora's, where it has one.
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(int optimizer, bool one_pass) const;
  void decay(torch::optim::Optimizer& optimizer) const;

  /// The loss that this rank's backward() starts from, unscaled; of all blocks in a further pass.
  torch::Tensor loss(int step, int rank, std::size_t pass) const;
  /// Freezes parameters before a step.
  void freeze(int step) const;
  /// Gives parameters other memory or values, if it is the moment.
  void replace(int step, Moment now) const;

 private:
  torch::Tensor forward(const torch::Tensor& input, unsigned blocks) const;
  /// The block whose parameters this one uses.
  std::size_t owner(std::size_t block) const;

  const Training training_;
  const torch::TensorOptions type_;
  std::vector<std::vector<torch::Tensor>> blocks_;  ///< weight and bias, or one tensor
  std::vector<torch::Tensor> parameters_;
  std::vector<std::size_t> block_of_;  ///< of each of parameters_
  torch::OrderedDict<std::string, torch::Tensor> named_;
};

/// A training on one process with plain LibTorch: every rank's gradients one after another,
/// averaged by hand.
class Reference {
 public:
  /// `members`: the world ranks that train together. Sums are taken in the order and, where
  /// gradients are compressed, with the rounding that collectives.h states, by the world's nodes.
  Reference(const Context& world, const Training& training, std::vector<int> members);

  /// Makes the step of the members that still take part, once for all of them.
  void step(int step);

  Network& network() { return network_; }
  bool stepped() const { return stepped_; }  ///< with a scaler: gradients were finite
  double scale() const { return scale_; }
  const std::vector<double>& norms() const { return norms_; }  ///< of each optimizer's gradients

 private:
  /// A gradient for each parameter; undefined where this rank has none.
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
