/// The two ways of making a training step.
#pragma once

#include <hora/torch.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "examples/cifar10/resnet18.h"

namespace bench {

struct StepOptions {
  cifar10::Stem stem = cifar10::Stem::imagenet;
  std::int64_t batch = 32;  ///< images a rank
  std::size_t bucket_bytes = 0;
};

/// ResNet-18 and SGD with momentum on one batch of noise that stays the same.
class PlainStep {
 public:
  explicit PlainStep(const StepOptions& options);
  /// Gradients undefined, forward, backward, step; no communication.
  void run();
  void forward_and_backward();

  cifar10::ResNet18& model() { return model_; }
  torch::optim::SGD& sgd() { return sgd_; }

 private:
  cifar10::ResNet18 model_;
  torch::optim::SGD sgd_;
  torch::Tensor images_;
  torch::Tensor labels_;
};

/// The same with averaged gradients.
class AveragedStep {
 public:
  /// Collective.
  AveragedStep(const hora::Context& world, const StepOptions& options,
               hora::Compression compression);
  void run();

  /// Collective: the largest difference between the last step's gradients and the average, in
  /// double precision, of those that each rank computes without hora from `weights`, the weights
  /// before that step. Relative to the parameter's largest gradient. Removes the hooks: run()
  /// must not be called after it.
  double error_of_gradients(const std::vector<torch::Tensor>& weights);
  std::vector<torch::Tensor> copy_of_weights();
  hora::DistributedOptimizer& optimizer() { return *optimizer_; }

 private:
  const hora::Context& world_;
  PlainStep plain_;
  std::optional<hora::DistributedOptimizer> optimizer_;
};

}  // namespace bench
