// Clipping by the global norm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class Clip : public testing::TestWithParam<torch::ScalarType> {
 protected:
  const Context world_ = init();
};

TEST_P(Clip, EqualsClippingOfTheAverages) {
  const bool narrow = torch::elementSize(GetParam()) == 2;
  Training ours(world_, {}, make_sgd, GetParam());
  Training theirs(world_, {}, make_sgd, GetParam());
  for (int step = 0; step < 3; ++step) {
    const Batch batch = my_batch(world_, step, 2, GetParam());
    for (Training* training : {&ours, &theirs}) {
      training->optimizer.zero_grad();
      training->backward(batch);
    }
    constexpr double kMaxNorm = 0.25;
    const double norm = ours.optimizer.clip_grad_norm_(kMaxNorm);
    theirs.optimizer.synchronize();
    const double expected =
        torch::nn::utils::clip_grad_norm_(theirs.network->parameters(), kMaxNorm);
    EXPECT_NEAR(norm, expected, expected * (narrow ? 0x1p-6 : 1e-5));
    EXPECT_GT(norm, kMaxNorm) << "else nothing is clipped";
    expect_close(gradients_of(ours.network), gradients_of(theirs.network), narrow ? 0x1p-6 : 1e-5);
    ours.optimizer.step();
    theirs.optimizer.step();
  }
  for (const auto& parameter : ours.network->parameters()) {
    EXPECT_TRUE(equals_root(world_, parameter));
  }
}

TEST_P(Clip, BelowTheLimitNoBitChanges) {
  Training training(world_, {}, make_sgd, GetParam());
  training.backward(my_batch(world_, 0, 2, GetParam()));
  training.optimizer.synchronize();
  const auto before = gradients_of(training.network);
  EXPECT_GT(training.optimizer.clip_grad_norm_(1e6), 0.0);
  expect_same_bits(gradients_of(training.network), before);
}

INSTANTIATE_TEST_SUITE_P(Types, Clip,
                         testing::Values(torch::kFloat, torch::kDouble, torch::kBFloat16),
                         [](const auto& of) { return torch::toString(of.param); });

TEST(ClipMisuse, TheLimitIsPositive) {
  const Context world = init();
  Training training(world);
  for (const double limit : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("expected more than 0"),
                 [&] { training.optimizer.clip_grad_norm_(limit); });
  }
}

TEST(ClipMisuse, WhatIsNotFiniteShowsInTheNormEverywhere) {
  const Context world = init();
  const auto weight = torch::zeros({100}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"weight", weight}});
  const bool last = world.rank() + 1 == world.size();
  (weight * (last ? std::numeric_limits<float>::infinity() : 1.0F)).sum().backward();
  EXPECT_FALSE(std::isfinite(optimizer.clip_grad_norm_(1.0)));
}

}  // namespace
}  // namespace hora::internal::test
