/// A network whose gradients are large enough to stay where autograd has put them, in training.
#pragma once

#include <hora/torch.h>
#include <hora/torch/optim.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "frameworks/torch/tensor_view.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/seed.h"

namespace hora::internal::test {

inline Settings with_arena(TensorArenaUse use, std::size_t limit = 0) {
  Settings settings;
  settings.tensor_arena = use;
  settings.tensor_arena_limit = limit;
  return settings;
}

/// Weights of 128 KiB, 64 KiB and less, biases far below.
inline torch::nn::Sequential wide_network() {
  torch::manual_seed(seed());
  return torch::nn::Sequential(torch::nn::Linear(256, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 128), torch::nn::Tanh(),
                               torch::nn::Linear(128, 10));
}

/// LibTorch's, or hora's, with the same options.
template <class Sgd>
std::unique_ptr<torch::optim::Optimizer> make_momentum(std::vector<torch::Tensor> parameters) {
  return std::make_unique<Sgd>(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
}

struct WideTraining {
  explicit WideTraining(const Context& its_world, const DistributedOptimizerOptions& options = {},
                        const MakeOptimizer& make = make_momentum<torch::optim::SGD>)
      : world(its_world),
        network(wide_network()),
        wrapped(make(network->parameters())),
        optimizer(world, *wrapped, network->named_parameters(), options) {}

  torch::Tensor loss(int step) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(100 * step + world.rank()));
    const auto input = torch::randn({4, 256});
    return network->forward(input).pow(2).mean();
  }
  torch::Tensor weight(int layer) { return network->parameters()[2 * layer]; }
  std::vector<torch::Tensor> weights() { return copies_of(network->parameters()); }

  const Context& world;
  torch::nn::Sequential network;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  DistributedOptimizer optimizer;
};

using Steps = std::function<void(WideTraining&)>;

inline void plain_steps(WideTraining& training) {
  for (int step = 0; step < 5; ++step) {
    training.optimizer.zero_grad();
    training.loss(step).backward();
    training.optimizer.step();
  }
}

/// In each step every second rank has no gradient.
inline void steps_where_some_ranks_lack_gradients(WideTraining& training) {
  for (int step = 0; step < 4; ++step) {
    training.optimizer.zero_grad();
    if ((step + training.world.rank()) % 2 == 0) training.loss(step).backward();
    training.optimizer.step();
  }
}

inline bool in_place(const torch::Tensor& parameter) {
  return parameter.grad().defined() && in_tensor_arena(parameter.grad().data_ptr());
}

/// As if without virtual nodes: between nodes gradients travel in buckets.
inline bool one_node(const Context& world) {
  return world.cross_size() == 1;
}

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
