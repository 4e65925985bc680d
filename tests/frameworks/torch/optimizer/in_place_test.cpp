// Gradients that are averaged where autograd has put them, beside those that are copied.
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <hora/torch/grad_scaler.h>

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

}  // namespace
}  // namespace hora::internal::test
