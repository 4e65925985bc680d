/// LAMB: layer-wise adaptive moments, for Adam with large batches.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace vision {

struct LAMBOptions : public torch::optim::OptimizerCloneableOptions<LAMBOptions> {
  explicit LAMBOptions(double lr) : lr_(lr) {}
  TORCH_ARG(double, lr);                  // >= 0
  TORCH_ARG(double, beta1) = 0.9;         // from 0 to below 1
  TORCH_ARG(double, beta2) = 0.999;       // from 0 to below 1
  TORCH_ARG(double, eps) = 1e-6;          // > 0
  TORCH_ARG(double, weight_decay) = 0.0;  // >= 0
  /// False: the group's layers take the rate as it is, Adam with decoupled decay. For BatchNorm and
  /// biases.
  TORCH_ARG(bool, adapt) = true;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

struct LAMBParamState : public torch::optim::OptimizerCloneableParamState<LAMBParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", arXiv
/// 1904.00962, algorithm 2, with the identity as phi. For each layer (parameter) with weight w and
/// gradient g, in step t = 1, 2, ...:
///
///     m = beta1 * m + (1 - beta1) * g,   v = beta2 * v + (1 - beta2) * g^2
///     u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w
///     w = w - lr * |w| / |u| * u
///
/// where |w| or |u| is 0, and in groups that do not adapt, w = w - lr * u. Not with shard_state,
/// which cuts layers: step() throws std::invalid_argument. Options out of range:
/// std::invalid_argument. Thread rule: one thread at a time.
class LAMB : public torch::optim::Optimizer {
 public:
  LAMB(std::vector<torch::optim::OptimizerParamGroup> groups, const LAMBOptions& defaults);
  LAMB(std::vector<torch::Tensor> parameters, const LAMBOptions& defaults);

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace vision
