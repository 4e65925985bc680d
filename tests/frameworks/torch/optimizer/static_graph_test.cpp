// Buckets laid out anew after the first step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class StaticGraph : public testing::Test {
 protected:
  torch::Tensor weight(std::int64_t size) { return torch::zeros({size}, torch::requires_grad()); }
  const Context world_ = init();
};

TEST_F(StaticGraph, WhatNoRankUsesDoesNotHoldItsBucketBack) {
  const auto used = weight(8);
  const auto unused = weight(8);
  torch::optim::SGD sgd({used, unused}, 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"used", used}, {"unused", unused}},
                                 {.static_graph = true});
  used.sum().backward();
  optimizer.step();
  const auto before = world_.statistics().operations;
  optimizer.zero_grad();
  used.sum().backward();
  // Submitted by the hook: done without any step().
  barrier(world_);
  if (world_.size() > 1) {
    EXPECT_EQ(world_.statistics().operations - before, 2U);
  }
  optimizer.step();
  EXPECT_EQ(used[0].item<float>(), -2.0F);
}

TEST_F(StaticGraph, AGradientThatTheFirstStepDidNotHaveThrows) {
  const auto used = weight(3);
  const auto unused = weight(3);
  torch::optim::SGD sgd({used, unused}, 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"used", used}, {"unused", unused}},
                                 {.static_graph = true});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    used.sum().backward();
    optimizer.step();
    optimizer.zero_grad();
    expect_error(ErrorCode::invalid_use, AllOf(HasSubstr("'unused'"), HasSubstr("static_graph")),
                 [&] { unused.sum().backward(); });
  }
}

}  // namespace
}  // namespace hora::internal::test
