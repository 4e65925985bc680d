// Gradients that stay where autograd has put them, beside those that are copied: averaged there, or
// by the pass that updates.
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/optim.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tests/frameworks/torch/optimizer/wide_training.h"

namespace hora::internal::test {
namespace {

std::vector<torch::Tensor> weights_after(const Settings& settings,
                                         const DistributedOptimizerOptions& options,
                                         const Steps& steps) {
  const Context world = init({.settings = settings});
  WideTraining training(world, options);
  steps(training);
  return training.weights();
}

void expect_same_bits_both_ways(const DistributedOptimizerOptions& options, const Steps& steps) {
  const auto copied = weights_after(with_arena(TensorArenaUse::off), options, steps);
  expect_same_bits(copied, weights_after(with_arena(TensorArenaUse::on), options, steps));
  // An arena for some of the gradients.
  expect_same_bits(copied,
                   weights_after(with_arena(TensorArenaUse::on, 300 << 10), options, steps));
}

TEST(InPlace, LargeGradientsStayWhereAutogradHasPutThem) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training(world);
  for (int step = 0; step < 3; ++step) {
    training.optimizer.zero_grad();
    training.loss(step).backward();
    const void* const first = training.weight(0).grad().data_ptr();
    EXPECT_EQ(in_place(training.weight(0)), one_node(world));
    training.optimizer.step();
    EXPECT_EQ(training.weight(0).grad().data_ptr(), first);
    EXPECT_EQ(in_place(training.weight(1)), one_node(world));
    EXPECT_FALSE(in_place(training.weight(2))) << "5 KiB";
  }
}

TEST(InPlace, GivesTheSameBitsOfSumsThatAreClipped) {
  expect_same_bits_both_ways({.op = ReduceOp::sum}, [](WideTraining& training) {
    for (int step = 0; step < 4; ++step) {
      training.optimizer.zero_grad();
      training.loss(step).backward();
      training.optimizer.clip_grad_norm_(0.1);
      training.optimizer.step();
    }
  });
}

// LibTorch 1.13's zero_grad() leaves `.grad` defined: autograd adds to what the last step has left.
TEST(InPlace, GivesTheSameBitsWhereGradientsAreZeroedInPlace) {
  expect_same_bits_both_ways({}, [](WideTraining& training) {
    for (int step = 0; step < 4; ++step) {
      if (step % 2 == 0) {
        training.optimizer.zero_grad();
      } else {
        for (auto& parameter : training.network->parameters()) parameter.mutable_grad().zero_();
      }
      training.loss(step).backward();
      training.optimizer.step();
    }
  });
}

TEST(InPlace, GivesTheSameBitsUnderALossScale) {
  expect_same_bits_both_ways({}, [](WideTraining& training) {
    GradScaler scaler(training.optimizer, {.initial_scale = 1024.0});
    for (int step = 0; step < 4; ++step) {
      training.optimizer.zero_grad();
      scaler.scale(training.loss(step)).backward();
      scaler.step();
      scaler.update();
    }
  });
}

TEST(InPlace, AGradientThatTheProgramHoldsIsCopied) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  WideTraining training(world);
  torch::Tensor seen;
  training.weight(0).register_hook([&](const torch::Tensor& gradient) { seen = gradient; });
  training.loss(0).backward();
  const auto own = seen.clone();
  training.optimizer.step();
  EXPECT_TRUE(torch::equal(seen, own)) << "not averaged";
  const auto mean = allreduce(world, own);
  EXPECT_TRUE(torch::equal(training.weight(0).grad(), mean));
}

// Autograd gives both parameters the same memory.
TEST(InPlace, TwoParametersWithOneGradient) {
  const Context world = init({.settings = with_arena(TensorArenaUse::on)});
  auto p = torch::ones({128, 256}, torch::requires_grad());
  auto q = torch::ones({256, 128}, torch::requires_grad());
  torch::optim::SGD sgd({p, q}, 1.0);
  torch::OrderedDict<std::string, torch::Tensor> named;
  named.insert("p", p);
  named.insert("q", q);
  DistributedOptimizer optimizer(world, sgd, named);
  const auto factor = torch::full({128 * 256}, world.rank() + 1.0);
  ((p.view(-1) + q.view(-1)) * factor).sum().backward();
  optimizer.step();
  const auto mean = static_cast<float>((world.size() + 1) / 2.0);
  EXPECT_TRUE(p.grad().eq(mean).all().item<bool>());
  EXPECT_TRUE(q.grad().eq(mean).all().item<bool>());
}

TEST(InPlace, TheAverageOutlivesTheOptimizerAndTheContext) {
  torch::Tensor average;
  float expected = 0;
  {
    const Context world = init({.settings = with_arena(TensorArenaUse::on)});
    WideTraining training(world);
    training.loss(0).backward();
    training.optimizer.step();
    average = training.weight(0).grad();
    expected = average.sum().item<float>();
  }
  EXPECT_EQ(average.sum().item<float>(), expected);
}

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
