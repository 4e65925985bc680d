/// The exponential moving average of a model's weights, which is often the better model.
///
///     vision::WeightAverage average(*model, 0.9999);
///     ...
///       optimizer.step();
///       average.update(*model);
///     {
///       const auto averaged = average.apply_to(*model);   // until the end of the block
///       validate(model);
///     }
#pragma once

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace vision {

/// After step t = 1, 2, ... average = d * average + (1 - d) * weight, with d = min(decay, (1 + t) /
/// (10 + t)): the first steps, far from the end, are soon forgotten (as TensorFlow's
/// ExponentialMovingAverage with num_updates). Begins as a copy of the weights. BatchNorm's running
/// statistics are averaged with them; buffers of integers are copied.
///
/// Without communication: equal on all ranks where the weights are, as DistributedOptimizer's are;
/// of buffers each rank averages its own.
///
/// Memory: once more the model's. Errors: std::invalid_argument for a decay outside [0, 1), and a
/// module whose parameters or buffers are others than at first. Thread rule: one thread.
class WeightAverage {
 public:
  WeightAverage(const torch::nn::Module& module, double decay);

  /// After each step.
  void update(const torch::nn::Module& module);

  /// While it lives the module has the averages; then it has its weights again, which are kept
  /// here meanwhile (once more the model's memory). Between steps: no update() and no training
  /// while it lives. The module's tensors stay where they are in memory.
  class [[nodiscard]] Applied {
   public:
    Applied(const WeightAverage& average, const torch::nn::Module& module);
    ~Applied();
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;

   private:
    torch::OrderedDict<std::string, torch::Tensor> tensors_;  ///< the module's
    std::vector<torch::Tensor> weights_;
  };
  Applied apply_to(const torch::nn::Module& module) const { return Applied(*this, module); }

  /// For checkpoints: by the module's names, parameters first; to be written to in place.
  const torch::OrderedDict<std::string, torch::Tensor>& tensors() const { return averages_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  torch::OrderedDict<std::string, torch::Tensor> averages_;
  double decay_;
  std::int64_t steps_ = 0;
};

}  // namespace vision
