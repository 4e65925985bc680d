#include <gtest/gtest.h>
#include <hora/grad_scaler.h>

#include <limits>

#include "tests/frameworks/torch/expect_error.h"
#include "tests/frameworks/torch/network.h"
#include "tests/support/seed.h"

namespace hora::test {
namespace {

struct Training {
  explicit Training(const Context& world, double learning_rate = 0.05)
      : network(small_network(seed())),
        sgd(network->parameters(), torch::optim::SGDOptions(learning_rate).momentum(0.9)),
        optimizer(world, sgd, network->named_parameters()) {}
  torch::nn::Sequential network;
  torch::optim::SGD sgd;
  DistributedOptimizer optimizer;
};

Batch my_batch(const Context& world, int step) {
  return part_of(whole_batch(seed() + step, 4 * world.size()), world.rank(), 4);
}

TEST(GradScaler, APowerOfTwoChangesNoBit) {
  const Context world = init();
  Training plain(world);
  Training scaled(world);
  GradScaler scaler({.initial_scale = 1024.0, .growth_interval = 2});
  for (int step = 0; step < 5; ++step) {
    const Batch batch = my_batch(world, step);
    plain.optimizer.zero_grad();
    loss_of(plain.network, batch).backward();
    plain.optimizer.step();
    scaled.optimizer.zero_grad();
    scaler.scale(loss_of(scaled.network, batch)).backward();
    EXPECT_TRUE(scaler.step(scaled.optimizer));
    scaler.update();
  }
  EXPECT_EQ(scaler.current_scale(), 4096.0);
  const auto expected = plain.network->parameters();
  const auto parameters = scaled.network->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], expected[i])) << "parameter " << i;
  }
}

TEST(GradScaler, AnInfinityOnOneRankSkipsTheStepOnAll) {
  const Context world = init();
  Training training(world);
  GradScaler scaler({.initial_scale = 8.0});
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (int round = 0; round < 2; ++round) {
    const auto before = copies_of(training.network->parameters());
    training.optimizer.zero_grad();
    torch::Tensor loss = loss_of(training.network, my_batch(world, round));
    if (world.rank() == world.size() - 1) loss = loss * bad[round];
    scaler.scale(loss).backward();
    EXPECT_FALSE(scaler.step(training.optimizer));
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), round == 0 ? 4.0 : 2.0);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(torch::equal(before[i], training.network->parameters()[i]));
    }
  }
  training.optimizer.zero_grad();
  scaler.scale(loss_of(training.network, my_batch(world, 2))).backward();
  EXPECT_TRUE(scaler.step(training.optimizer)) << "the next step is right";
  scaler.update();
  for (const auto& parameter : training.network->parameters()) {
    EXPECT_TRUE(equals_root(world, parameter));
    EXPECT_TRUE(torch::isfinite(parameter).all().item<bool>());
  }
}

TEST(GradScaler, GradientsAreDividedOnceAStepAndBeforeClipping) {
  const Context world = init();
  Training training(world);
  GradScaler scaler({.initial_scale = 64.0});
  training.optimizer.zero_grad();
  scaler.scale(loss_of(training.network, my_batch(world, 0))).backward();
  scaler.unscale_(training.optimizer);
  const auto divided = copies_of({training.network->parameters()[0].grad()});
  expect_error(ErrorCode::invalid_use, testing::HasSubstr("divided by the scale already"),
               [&] { scaler.unscale_(training.optimizer); });
  EXPECT_TRUE(scaler.step(training.optimizer));
  EXPECT_TRUE(torch::equal(divided[0], training.network->parameters()[0].grad()));
}

TEST(GradScaler, SwitchedOffItDoesNothing) {
  const Context world = init();
  Training training(world);
  GradScaler scaler({.enabled = false});
  training.optimizer.zero_grad();
  const torch::Tensor loss = loss_of(training.network, my_batch(world, 0));
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  scaler.scale(loss).backward();
  EXPECT_TRUE(scaler.step(training.optimizer));
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 1.0);
}

}  // namespace
}  // namespace hora::test
