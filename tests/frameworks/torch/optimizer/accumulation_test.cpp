// Gradients added up over several backward passes before they are averaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class Accumulation : public testing::Test {
 protected:
  torch::Tensor loss(double value) { return (weight_ * value).sum(); }
  double gradient() const { return weight_.grad()[0].item<double>(); }
  double mean(const std::function<double(int)>& of_rank) const {
    return mean_over_ranks(world_, of_rank);
  }
  DistributedOptimizer wrap(const DistributedOptimizerOptions& options = {}) {
    return {world_, sgd_, {{"weight", weight_}, {"other", other_}}, options};
  }

  const Context world_ = init();
  const double own_ = world_.rank() + 1.0;
  const torch::Tensor weight_ = torch::zeros({3}, torch::requires_grad());
  const torch::Tensor other_ = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_, other_}, 1.0};
};

TEST_F(Accumulation, NothingTravelsBeforeTheLastPass) {
  auto optimizer = wrap({.backward_passes_per_step = 2});
  const auto before = world_.statistics().operations;
  loss(1.0).backward();
  EXPECT_EQ(world_.statistics().operations, before);
  loss(1.0).backward();
  optimizer.step();
  if (world_.size() > 1) {
    EXPECT_GT(world_.statistics().operations, before);
  }
}

TEST_F(Accumulation, FewerPassesThanAnnouncedAreAveragedByStep) {
  auto optimizer = wrap({.backward_passes_per_step = 5});
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), mean([](int rank) { return rank + 1.0; }));
  optimizer.zero_grad();  // and it counts from the start
  for (int pass = 0; pass < 5; ++pass) loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 5 * mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, OnePassTooManyThrows) {
  auto optimizer = wrap({.backward_passes_per_step = 2});
  loss(1.0).backward();
  loss(1.0).backward();
  expect_error(ErrorCode::invalid_use, HasSubstr("more than 2 times (backward_passes_per_step)"),
               [&] { loss(1.0).backward(); });
  optimizer.step();
}

TEST_F(Accumulation, ThePassesCanBeChangedBetweenSteps) {
  auto optimizer = wrap();
  expect_error(ErrorCode::invalid_argument, HasSubstr("is 0; expected 1 or more"),
               [&] { optimizer.set_backward_passes_per_step(0); });
  optimizer.set_backward_passes_per_step(2);
  loss(own_).backward();
  expect_error(ErrorCode::invalid_use, HasSubstr("between backward() and step()"),
               [&] { optimizer.set_backward_passes_per_step(1); });
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 2 * mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, GuardsNestMoveAndEndInAnyOrder) {
  auto optimizer = wrap();
  const auto before = world_.statistics().operations;
  {
    auto outer = std::make_unique<DistributedOptimizer::Guard>(optimizer.no_sync());
    auto inner = std::make_unique<DistributedOptimizer::Guard>(optimizer.no_sync());
    outer.reset();
    loss(own_).backward();
    const DistributedOptimizer::Guard moved = std::move(*inner);
    inner.reset();
    loss(own_).backward();
    { const auto innermost = optimizer.no_sync(); }
    loss(own_).backward();
  }
  EXPECT_EQ(world_.statistics().operations, before);
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 4 * mean([](int rank) { return rank + 1.0; }));
  loss(own_).backward();
  {
    const auto outer = optimizer.skip_synchronize();
    { const auto inner = optimizer.skip_synchronize(); }
    expect_error(ErrorCode::invalid_use, HasSubstr("call synchronize() first"),
                 [&] { optimizer.step(); });
  }
  optimizer.step();
}

TEST_F(Accumulation, AGuardMayOutliveItsOptimizer) {
  std::vector<DistributedOptimizer::Guard> guards;
  {
    auto first = wrap();
    guards.push_back(first.no_sync());
    guards.push_back(first.skip_synchronize());
    const auto moved = std::move(first);
  }
  auto optimizer = wrap();  // another one does not count them
  loss(own_).backward();
  optimizer.step();
  guards.clear();
  EXPECT_DOUBLE_EQ(gradient(), mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, ZeroGradForgetsWhatNoSyncHasAddedUp) {
  auto optimizer = wrap({.backward_passes_per_step = 2});
  loss(1000.0).backward();
  optimizer.zero_grad();
  EXPECT_FALSE(weight_.grad().defined());
  loss(own_).backward();
  loss(own_).backward();
  optimizer.step();
  EXPECT_DOUBLE_EQ(gradient(), 2 * mean([](int rank) { return rank + 1.0; }));
}

TEST_F(Accumulation, StepUnderSkipSynchronizeWantsAverages) {
  auto optimizer = wrap({.compare_ranks = false});
  loss(own_).backward();
  {
    const auto guard = optimizer.skip_synchronize();
    expect_error(ErrorCode::invalid_use, HasSubstr("call synchronize() first"),
                 [&] { optimizer.step(); });
  }
  optimizer.synchronize();
  weight_.mutable_grad().mul_(0.5);
  const auto before = world_.statistics().operations;
  {
    const auto guard = optimizer.skip_synchronize();
    optimizer.step();
  }
  EXPECT_EQ(world_.statistics().operations, before);
  EXPECT_DOUBLE_EQ(weight_[0].item<double>(), -0.5 * mean([](int rank) { return rank + 1.0; }));
}

// Horovod averages a second time here, and warns once; nothing is averaged twice in hora.
TEST_F(Accumulation, StepAfterSynchronizeDoesNotAverageAgain) {
  auto optimizer = wrap({.op = ReduceOp::sum, .compare_ranks = false});
  loss(own_).backward();
  optimizer.synchronize();
  const auto before = world_.statistics().operations;
  optimizer.step();
  EXPECT_EQ(world_.statistics().operations, before);
  EXPECT_DOUBLE_EQ(gradient(), mean([](int rank) { return rank + 1.0; }) * world_.size());
}

}  // namespace
}  // namespace hora::internal::test
