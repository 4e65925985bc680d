// The pass that averages and updates, by each optimizer that it takes, with groups of different
// options, on gradients that lie in the tensor arena and on those that do not.
#include <gtest/gtest.h>
#include <hora/torch/optim.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"

namespace hora::internal::test {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

struct OptimizerKind {
  std::string name;
  MakeOptimizer make;
};

/// All parameters in one group.
template <class Optimizer, class Options>
MakeOptimizer in_one_group(const Options& options) {
  return [options](std::vector<torch::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

/// Weights in one group, biases in another, so that pieces of a bucket alternate between them.
template <class Optimizer, class Options>
MakeOptimizer in_two_groups(const Options& of_weights, const Options& of_biases) {
  return [of_weights, of_biases](const std::vector<torch::Tensor>& parameters) {
    std::vector<torch::Tensor> weights, biases;
    for (const auto& one : parameters) (one.dim() > 1 ? weights : biases).push_back(one);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::move(weights), std::make_unique<Options>(of_weights));
    groups.emplace_back(std::move(biases), std::make_unique<Options>(of_biases));
    return std::make_unique<Optimizer>(std::move(groups), of_weights);
  };
}

const OptimizerKind kOptimizerKinds[] = {
    {"Sgd", in_one_group<optim::SGD>(SGDOptions(0.05))},
    {"SgdDampening",
     in_one_group<optim::SGD>(SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(1e-3))},
    {"SgdGroups",
     in_two_groups<optim::SGD>(SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(1e-2),
                               SGDOptions(0.02))},
    {"Adam", in_one_group<optim::Adam>(AdamOptions(0.01))},
    {"AdamAmsgrad", in_one_group<optim::Adam>(AdamOptions(0.01).amsgrad(true).weight_decay(0.02))},
    {"AdamGroups",
     in_two_groups<optim::Adam>(AdamOptions(0.01).weight_decay(0.02).betas({0.87, 0.98}),
                                AdamOptions(0.003).eps(1e-5).amsgrad(true))},
    {"AdamW", in_one_group<optim::AdamW>(AdamWOptions(0.01))},
    {"AdamWGroups", in_two_groups<optim::AdamW>(AdamWOptions(0.01).weight_decay(0.3),
                                                AdamWOptions(0.004).weight_decay(0))},
};

/// A weight of 96 KiB, which can lie in the arena, and smaller ones, which cannot.
struct TrainingBy {
  TrainingBy(const Context& its_world, const MakeOptimizer& make,
             const DistributedOptimizerOptions& options)
      : world(its_world),
        network(make_network()),
        wrapped(make(network->parameters())),
        optimizer(world, *wrapped, network->named_parameters(), options) {}

  static torch::nn::Sequential make_network() {
    torch::manual_seed(seed());
    return torch::nn::Sequential(torch::nn::Linear(192, 128), torch::nn::Tanh(),
                                 torch::nn::Linear(128, 7));
  }

  void step(int number) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(100 * number + world.rank()));
    optimizer.zero_grad();
    network->forward(torch::randn({4, 192})).pow(2).mean().backward();
    optimizer.step();
  }
  void scale_rates(double factor) {
    for (auto& group : wrapped->param_groups()) {
      group.options().set_lr(factor * group.options().get_lr());
    }
  }
  std::size_t bytes() {
    std::size_t all = 0;
    for (const auto& parameter : network->parameters()) all += parameter.nbytes();
    return all;
  }

  const Context& world;
  torch::nn::Sequential network;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  DistributedOptimizer optimizer;
};

using Case = std::tuple<OptimizerKind, TensorArenaUse>;
class FusedUpdateOptimizers : public testing::TestWithParam<Case> {};

// The same optimizer gives these without shards; optim_test says that they are LibTorch's.
TEST_P(FusedUpdateOptimizers, GiveTheBitsOfAveragesAndAStepApart) {
  const auto& [kind, arena] = GetParam();
  Settings settings;
  settings.tensor_arena = arena;
  const Context world = init({.settings = settings});
  TrainingBy apart(world, kind.make, {});
  TrainingBy fused(world, kind.make, {.bucket_bytes = 70000, .sharding = Sharding::fused});
  TrainingBy in_backward(world, kind.make,
                         {.bucket_bytes = 70000, .sharding = Sharding::in_backward});
  const bool shares_memory = world.cross_size() == 1 && world.size() > 1;
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      for (TrainingBy* training : {&apart, &fused, &in_backward}) training->scale_rates(0.5);
    }
    apart.step(step);
    in_backward.step(step);
    const auto before = world.statistics().bytes;
    fused.step(step);
    if (shares_memory && step > 0) {
      EXPECT_LT(world.statistics().bytes - before, fused.bytes() / 2)
          << "the gradients went through collectives";
    }
    expect_same_bits(fused.network->parameters(), apart.network->parameters());
    expect_same_bits(in_backward.network->parameters(), apart.network->parameters());
  }
}

INSTANTIATE_TEST_SUITE_P(Arena, FusedUpdateOptimizers,
                         testing::Combine(testing::ValuesIn(kOptimizerKinds),
                                          testing::Values(TensorArenaUse::off, TensorArenaUse::on)),
                         [](const auto& tested) {
                           const bool is_on = std::get<1>(tested.param) == TensorArenaUse::on;
                           return std::get<0>(tested.param).name + (is_on ? "On" : "Off");
                         });

}  // namespace
}  // namespace hora::internal::test
