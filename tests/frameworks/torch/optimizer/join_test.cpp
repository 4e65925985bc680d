// Ranks whose data end at different steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class OptimizerJoin : public testing::Test {
 protected:
  const Context world_ = init();
};

TEST_F(OptimizerJoin, WhoHasJoinedCountsAsZero) {
  const auto weight = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}});
  for (int step = 0; step <= world_.rank(); ++step) {
    optimizer.zero_grad();
    weight.sum().backward();
    optimizer.step();
    const double active = world_.size() - step;
    EXPECT_DOUBLE_EQ(
        weight.grad()[0].item<double>(),
        static_cast<double>(static_cast<float>(active) * static_cast<float>(1.0 / world_.size())));
  }
  EXPECT_EQ(optimizer.join(), world_.size() - 1);
}

TEST_F(OptimizerJoin, ClippingIsThatOfTheRanksThatAreLeft) {
  const auto weight = torch::zeros({1000}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}}, {.op = ReduceOp::sum});
  for (int step = 0; step <= world_.rank(); ++step) {
    optimizer.zero_grad();
    (weight * 2.0).sum().backward();
    const double active = world_.size() - step;
    EXPECT_NEAR(optimizer.clip_grad_norm_(1.0), 2.0 * active * std::sqrt(1000.0), 1e-3);
    optimizer.step();
  }
  optimizer.join();
}

TEST_F(OptimizerJoin, WhatAJoinedRankCannotDoIsRefused) {
  const auto refused = [&](const DistributedOptimizerOptions& options, const std::string& text) {
    Training training(world_, options);
    expect_error(ErrorCode::invalid_use, HasSubstr(text), [&] { training.optimizer.join(); });
  };
  refused({.sharding = Sharding::state}, "with sharding");
  refused({.buffers = {torch::zeros({2})}}, "with option buffers");
}

}  // namespace
}  // namespace hora::internal::test
