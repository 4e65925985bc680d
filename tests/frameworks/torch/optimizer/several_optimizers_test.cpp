// Ranks whose data end at different steps; and two optimizers whose gradients come from one loss,
// or whose steps are taken in one loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/grad_scaler.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// One weight and its optimizer, whose gradients the test gives.
struct Part {
  explicit Part(const Context& world, const DistributedOptimizerOptions& options = {})
      : optimizer(world, sgd, {{"weight", weight}}, options) {}
  torch::Tensor weight = torch::zeros({4}, torch::requires_grad());
  torch::optim::SGD sgd{{weight}, 1.0};
  DistributedOptimizer optimizer;
};

class SeveralOptimizers : public testing::Test {
 protected:
  bool last() const { return world_.rank() + 1 == world_.size(); }
  torch::Tensor loss(double of_b = 2.0) { return (a_.weight + b_.weight * of_b).sum(); }
  void zero_grad() {
    a_.optimizer.zero_grad();
    b_.optimizer.zero_grad();
  }
  static void expect_values(const Part& part, double value) {
    EXPECT_TRUE(torch::equal(part.weight, torch::full({4}, value))) << part.weight;
  }

  const Context world_ = init();
  Part a_{world_};
  Part b_{world_};
};

TEST_F(SeveralOptimizers, OneScalerDecidesOnceForAll) {
  GradScaler scaler({&a_.optimizer, &b_.optimizer}, {.initial_scale = 8.0});
  const double bad = std::numeric_limits<double>::infinity();
  double steps = 0.0;
  for (const bool overflow : {false, true, false}) {
    zero_grad();
    // An overflow in the second alone, and on one rank alone.
    scaler.scale(loss(overflow && last() ? bad : 2.0)).backward();
    EXPECT_EQ(scaler.step(), !overflow);
    scaler.update();
    steps += overflow ? 0.0 : 1.0;
    expect_values(a_, -steps);
    expect_values(b_, -2.0 * steps);
  }
  EXPECT_EQ(scaler.current_scale(), 4.0);
}

TEST_F(SeveralOptimizers, AScalerEachUnderOneLossIsAnError) {
  GradScaler of_a(a_.optimizer);
  GradScaler of_b(b_.optimizer);
  of_a.scale(loss()).backward();
  EXPECT_TRUE(of_a.step());
  expect_error(
      ErrorCode::invalid_use,
      AllOf(HasSubstr("scale() has given no loss"), HasSubstr("GradScaler scaler({&a, &b})")),
      [&] { of_b.step(); });
  expect_values(b_, 0.0);
}

TEST_F(SeveralOptimizers, AScalerTakesEachOnceAndOfOneProcessSet) {
  const auto refused = [](ErrorCode code, const std::string& text,
                          const std::vector<DistributedOptimizer*>& optimizers) {
    expect_error(code, HasSubstr(text), [&] { GradScaler scaler(optimizers); });
  };
  refused(ErrorCode::invalid_argument, "no optimizer", {});
  refused(ErrorCode::invalid_argument, "optimizer 1 is null", {&a_.optimizer, nullptr});
  refused(ErrorCode::invalid_argument, "optimizer 1 was given before",
          {&a_.optimizer, &a_.optimizer});
  const ProcessSet set = add_process_set(world_, {0});
  if (world_.rank() != 0) return;
  Part alone(world_, {.process_set = set});
  refused(ErrorCode::invalid_argument, "optimizer 1 averages over another process set",
          {&a_.optimizer, &alone.optimizer});
}

TEST_F(SeveralOptimizers, ARefusedScalerLeavesTheOptimizersFree) {
  {
    GradScaler of_b(b_.optimizer);
    expect_error(ErrorCode::invalid_use, HasSubstr("has one already"), [&] {
      GradScaler scaler({&a_.optimizer, &b_.optimizer});
    });
  }
  GradScaler scaler({&a_.optimizer, &b_.optimizer}, {.initial_scale = 8.0});
  scaler.scale(loss()).backward();
  EXPECT_TRUE(scaler.step());
  expect_values(b_, -2.0);
}

TEST_F(SeveralOptimizers, ScalersOfOtherOrderOnOtherRanksAreRefusedOnAll) {
  if (world_.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  std::vector<DistributedOptimizer*> optimizers{&a_.optimizer, &b_.optimizer};
  if (last()) std::swap(optimizers[0], optimizers[1]);
  // By the name of the first one the ranks would not even be matched: none may hang.
  expect_error(ErrorCode::mismatch, HasSubstr("GradScaler's options or optimizers"),
               [&] { GradScaler scaler(optimizers); });
}

// One rank after the other runs out of data; the two are stepped in one loop.
class SeveralOptimizersJoin : public SeveralOptimizers {
 protected:
  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      zero_grad();
      loss().backward();
      a_.optimizer.step();
      b_.optimizer.step();
    }
  }
  /// The last rank's training is everybody's.
  void expect_last_ones(const Part& part, const torch::Tensor& before) {
    torch::Tensor last_ones = before.clone();
    broadcast_(world_, last_ones, {.root = world_.size() - 1});
    EXPECT_TRUE(torch::equal(part.weight, last_ones)) << part.weight;
  }
};

// The rank that ran out first comes last to the second one's join(), with parameters that are old.
TEST_F(SeveralOptimizersJoin, OneAfterTheOther) {
  train(2 + 2 * world_.rank());
  const auto b = b_.weight.detach().clone();
  a_.optimizer.join();
  if (world_.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(b_.optimizer.join(), world_.size() - 1);
  expect_last_ones(b_, b);
}

TEST_F(SeveralOptimizersJoin, OfOthersOnOtherRanksIsRefusedOnAll) {
  if (world_.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  expect_error(ErrorCode::mismatch, HasSubstr("optimizers given to join()"), [&] {
    if (last()) {
      join(world_, {&a_.optimizer, &b_.optimizer});
    } else {
      b_.optimizer.join();
    }
  });
}

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
