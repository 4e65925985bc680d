/// LARS: layer-wise adaptive rate scaling, for SGD with large batches.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <vector>

namespace vision {

struct LARSOptions : public torch::optim::OptimizerCloneableOptions<LARSOptions> {
  explicit LARSOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);                         // >= 0
  TORCH_ARG(double, momentum) = 0.9;             // >= 0
  TORCH_ARG(double, weight_decay) = 0.0;         // >= 0
  TORCH_ARG(double, trust_coefficient) = 0.001;  // > 0
  /// False: the group's layers take the rate as it is, plain SGD. For BatchNorm and biases.
  TORCH_ARG(bool, adapt) = true;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

struct LARSParamState : public torch::optim::OptimizerCloneableParamState<LARSParamState> {
  TORCH_ARG(torch::Tensor, momentum_buffer);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", arXiv 1708.03888,
/// algorithm 1. For each layer (parameter) with weight w and gradient g, both 2-norms:
///
///     rate = lr * trust_coefficient * |w| / (|g| + weight_decay * |w|)
///     v = momentum * v + rate * (g + weight_decay * w),   w = w - v
///
/// where |w| or |g| is 0, and in groups that do not adapt, rate = lr. Not with shard_state, which
/// cuts layers: step() throws std::invalid_argument. Options out of range: std::invalid_argument.
/// Thread rule: one thread at a time.
class LARS : public torch::optim::Optimizer {
 public:
  LARS(std::vector<torch::optim::OptimizerParamGroup> groups, const LARSOptions& defaults);
  LARS(std::vector<torch::Tensor> parameters, const LARSOptions& defaults);

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace vision
