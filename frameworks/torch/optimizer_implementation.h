/// What DistributedOptimizer is made of: the averager, and the hooks that feed it. GradScaler works
/// with it, too.
#pragma once

#include <hora/torch.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "frameworks/torch/gradient_averager.h"
#include "frameworks/torch/gradient_hooks.h"

namespace hora {

/// Thread rule: one thread at a time.
class DistributedOptimizer::Implementation {
 public:
  /// The context and the optimizer must outlive it.
  Implementation(const Context& context, torch::optim::Optimizer& optimizer,
                 std::vector<Parameter> parameters, const GradientAverager::Options& options);

  void zero_grad();
  void synchronize();
  /// Unless that was done since the last backward.
  void synchronize_once();
  void step();
  /// The end of a round whose gradients are not used.
  void skip_step() { synchronized_ = false; }

  /// From the next backward on `.grad` gets gradients multiplied by `factor`, and they are looked
  /// at. Each throws Error(invalid_use) between backward() and the end of its averaging; the first,
  /// where that was begun and not ended.
  void begin_unscaling(double factor);
  void change_unscaling(double factor);
  void end_unscaling() noexcept;
  /// After synchronize_once(): whether the averages of such gradients are finite, the same on all
  /// ranks. Waits for the device.
  bool gradients_are_finite() const { return averager_.gradients_were_finite(); }

  const Context& context() const { return context_; }
  const std::string& name() const { return name_; }  ///< the prefix of its collectives
  torch::optim::Optimizer& optimizer() { return optimizer_; }
  OptimizerStatistics& statistics() { return statistics_; }

 private:
  void refuse_new_parameters() const;

  const Context& context_;
  const std::string name_;
  torch::optim::Optimizer& optimizer_;
  GradientAverager averager_;
  GradientHooks hooks_;  // after averager_: taken away first
  std::unordered_set<const void*> known_;
  bool synchronized_ = false;
  bool unscales_ = false;
  OptimizerStatistics statistics_;
};

}  // namespace hora
