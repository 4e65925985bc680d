/// PowerSGD: gradients travel as matrices of low rank.
///
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
///         {.hook = std::make_shared<hora::PowerSgd>(hora::PowerSgdOptions{.rank = 4})});
#pragma once

#include <hora/export.h>
#include <hora/torch/gradient_hook.h>

#include <cstdint>
#include <memory>

namespace HORA_EXPORT hora {

struct PowerSgdOptions {
  int rank = 2;                ///< of the matrices that travel, >= 1
  int start_step = 0;          ///< steps before it average gradients as they are
  bool error_feedback = true;  ///< what a step leaves out is added to the next one's gradient
  bool warm_start = true;      ///< each step begins with the last one's Q, else with a random one
  std::uint64_t seed = 0;      ///< of the random Q
};

/// Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2. A
/// gradient of two and more dimensions is a matrix M (first by all others, n x m); averages of P (n
/// x rank) and Q (m x rank) travel where smaller, and P Q^T takes M's place. Others are averaged as
/// they are.
///
/// Memory: an error of each such gradient and its Q. Arithmetic in float32. Ranks have the same
/// bits where their LibTorch computes alike: each orthogonalises P itself. Constructor:
/// Error(invalid_argument) for options out of range. Thread rule: as GradientHook.
class PowerSgd final : public GradientHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options = {});
  ~PowerSgd() override;

  void begin(const GradientBucketView& bucket) override;
  bool proceed(const GradientBucketView& bucket) override;
  std::string describe() const override;
  torch::OrderedDict<std::string, torch::Tensor> state() const override;
  void set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) override;

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
