// The pass that averages and updates, on gradients that stay where autograd has put them: the same
// bits as LibTorch's step on averages of copies.
#include <gtest/gtest.h>
#include <hora/torch/optim.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/optimizer/wide_training.h"

namespace hora::internal::test {
namespace {

WideTraining fused_training(const Context& world, std::size_t bucket_bytes = 0) {
  return WideTraining(world, {.bucket_bytes = bucket_bytes, .sharding = Sharding::fused},
                      make_momentum<optim::SGD>);
}

std::vector<torch::Tensor> weights_of_copies(const Steps& steps) {
  const Context world = init({.settings = with_arena(TensorArenaUse::off)});
  WideTraining training(world);
  steps(training);
  return training.weights();
}

/// Tensors that leave the arena no room for gradients of the weights.
std::vector<torch::Tensor> fill_arena() {
  std::vector<torch::Tensor> held;
  for (const std::int64_t bytes : {128 << 10, 64 << 10}) {
    while (held.size() < 10000) {
      held.push_back(torch::empty({bytes}, torch::kByte));
      if (!in_tensor_arena(held.back().data_ptr())) break;
    }
  }
  return held;
}

TEST(FusedInPlace, GivesTheSameBitsWhereSomeRanksHaveNoArenaLeft) {
  const auto expected = weights_of_copies(plain_steps);
  const Context world = init({.settings = with_arena(TensorArenaUse::on, 4 << 20)});
  for (const bool even_ranks : {true, false}) {
    WideTraining training = fused_training(world);
    const bool filled = (world.rank() % 2 == 0) == even_ranks;
    const auto held = filled ? fill_arena() : std::vector<torch::Tensor>();
    training.loss(0).backward();
    EXPECT_EQ(in_place(training.weight(0)), one_node(world) && !filled);
    training.optimizer.zero_grad();
    plain_steps(training);
    expect_same_bits(training.weights(), expected);
  }
}

TEST(FusedInPlace, GivesTheSameBitsFromMemoryThatIsNewWhileTraining) {
  const auto expected = weights_of_copies(plain_steps);
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training = fused_training(world);
  std::vector<torch::Tensor> held;
  std::set<const void*> before;
  for (int step = 0; step < 5; ++step) {
    training.optimizer.zero_grad();
    training.loss(step).backward();
    EXPECT_EQ(in_place(training.weight(0)), one_node(world));
    const void* const memory = training.weight(0).grad().data_ptr();
    EXPECT_FALSE(before.contains(memory));
    training.optimizer.step();
    before.clear();
    // More than a segment of the arena: 64 MiB, of which no page is touched.
    if (step % 3 != world.rank() % 3) continue;
    for (int i = 0; i < 600; ++i) {
      held.push_back(torch::empty({128 << 10}, torch::kByte));
      before.insert(held.back().data_ptr());
    }
    EXPECT_EQ(before.contains(memory), one_node(world)) << "the next gradient lies elsewhere";
  }
  expect_same_bits(training.weights(), expected);
}

// The first rank's own tensor becomes the gradient, and is written to before the pass reads it.
TEST(FusedInPlace, AGradientThatTheProgramHoldsIsCopied) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  const auto weight = torch::zeros({128, 256}, torch::requires_grad());
  const auto sgd = make_momentum<optim::SGD>({weight});
  DistributedOptimizer optimizer(world, *sgd, {{"weight", weight}}, {.sharding = Sharding::fused});
  auto own = torch::full({128 * 256}, world.rank() + 1.0);
  if (world.rank() == 0) {
    weight.view(-1).backward(own);
    EXPECT_TRUE(in_tensor_arena(own.data_ptr()));
    own.fill_(1e9);
  } else {
    (weight.view(-1) * own).sum().backward();
  }
  EXPECT_EQ(in_place(weight), one_node(world) && world.rank() != 0);
  optimizer.step();
  // The mean of 1, 2, ... ranks.
  const double mean = (world.size() + 1) / 2.0;
  EXPECT_TRUE(torch::allclose(weight, torch::full_like(weight, -0.1 * mean)));
}

// Channels-last: the piece of a rank is a range of the memory order.
TEST(FusedInPlace, GivesTheSameBitsOfChannelsLastWeights) {
  const auto train = [](const Settings& settings, const DistributedOptimizerOptions& options,
                        const MakeOptimizer& make) {
    const Context world = init({.settings = settings});
    torch::manual_seed(seed());
    torch::nn::Conv2d convolution(32, 64, 3);
    convolution->to(torch::kFloat);
    convolution->weight.set_data(
        convolution->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    const auto wrapped = make(convolution->parameters());
    DistributedOptimizer optimizer(world, *wrapped, convolution->named_parameters(), options);
    for (int step = 0; step < 4; ++step) {
      torch::manual_seed(seed() + static_cast<std::uint64_t>(100 * step + world.rank()));
      auto images = torch::randn({2, 32, 6, 6});
      // A gradient of another memory order than the weight's is copied.
      if (step % 2 == 0) images = images.contiguous(torch::MemoryFormat::ChannelsLast);
      optimizer.zero_grad();
      convolution(images).pow(2).mean().backward();
      optimizer.step();
    }
    return copies_of(convolution->parameters());
  };
  const auto expected =
      train(with_arena(TensorArenaUse::off), {}, make_momentum<torch::optim::SGD>);
  expect_same_bits(train(with_arena(TensorArenaUse::on), {.sharding = Sharding::fused},
                         make_momentum<optim::SGD>),
                   expected);
}

}  // namespace
}  // namespace hora::internal::test
