/// The network of a training and the optimizers on it: the same values wherever they are made.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

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
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(int optimizer) const;

  /// What this rank's backward() starts from, but for the loss's scale.
  torch::Tensor loss(int step, int rank, std::size_t pass) const;
  /// Before a step: which parameters require a gradient in it.
  void freeze(int step) const;
  /// Between a step and the next one.
  void replace(int step) const;

 private:
  torch::Tensor forward(const torch::Tensor& input, unsigned blocks) const;
  /// Of the block whose parameters this one uses.
  std::size_t owner(std::size_t block) const;

  const Training training_;
  const torch::TensorOptions type_;
  std::vector<std::vector<torch::Tensor>> blocks_;  ///< weight and bias, or one tensor
  std::vector<torch::Tensor> parameters_;
  std::vector<std::size_t> block_of_;  ///< of each of parameters_
  torch::OrderedDict<std::string, torch::Tensor> named_;
};

}  // namespace hora::internal::test
