/// Trainings whose buckets are updated while backward goes on.
#pragma once

#include <hora/torch.h>
#include <hora/torch/optim.h>

#include <cstddef>
#include <vector>

#include "tests/frameworks/torch/optimizer/wide_training.h"

namespace hora::internal::test {

/// Buckets of about one weight each.
inline DistributedOptimizerOptions updates_in_backward(std::size_t bucket_bytes = 70000) {
  return {.bucket_bytes = bucket_bytes, .sharding = Sharding::in_backward};
}
inline DistributedOptimizerOptions updates_in_step(std::size_t bucket_bytes = 70000) {
  return {.bucket_bytes = bucket_bytes, .sharding = Sharding::fused};
}

inline WideTraining training_of(const Context& world, const DistributedOptimizerOptions& options) {
  return WideTraining(world, options, make_momentum<optim::SGD>);
}

inline std::vector<torch::Tensor> weights_after(const Steps& steps, const InitOptions& init_options,
                                                const DistributedOptimizerOptions& options) {
  const Context world = init(init_options);
  WideTraining training = training_of(world, options);
  steps(training);
  return training.weights();
}
inline std::vector<torch::Tensor> weights_after(const Steps& steps, const Settings& settings,
                                                const DistributedOptimizerOptions& options) {
  return weights_after(steps, InitOptions{.settings = settings}, options);
}

}  // namespace hora::internal::test
