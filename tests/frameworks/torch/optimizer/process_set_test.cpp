// Optimizers of process sets: even and odd ranks train apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/frameworks/torch/process_sets.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class OptimizerOfSet : public testing::TestWithParam<Sharding> {
 protected:
  ~OptimizerOfSet() override { barrier(world_); }

  const Context world_ = init();
  const ParitySet own_{world_};
};

TEST_P(OptimizerOfSet, AveragesInsideAndNotAcross) {
  Training training(world_, {.process_set = own_.id, .sharding = GetParam()});
  for (int step = 0; step < 3; ++step) training.step(my_batch(world_, step));
  for (const auto& parameter : training.network->parameters()) {
    torch::Tensor of_set = parameter.detach().clone();
    broadcast_(world_, of_set, {.root = own_.members.front(), .process_set = own_.id});
    EXPECT_TRUE(torch::equal(of_set, parameter));
    if (world_.size() > 1) {
      const torch::Tensor both = allgather(world_, parameter.detach().unsqueeze(0));
      EXPECT_FALSE(torch::equal(both[0], both[1]));
    }
  }
}

TEST_P(OptimizerOfSet, WorldAndSetSideBySide) {
  Training of_world(world_, {.sharding = GetParam()});
  Training of_set(world_, {.process_set = own_.id, .sharding = GetParam()});
  Training alone(world_, {.sharding = GetParam()});
  for (int step = 0; step < 3; ++step) {
    const Batch batch = my_batch(world_, step);
    for (Training* training : {&of_world, &of_set}) training->optimizer.zero_grad();
    of_world.backward(batch);
    of_set.backward(batch);
    of_set.optimizer.step();
    of_world.optimizer.step();
    alone.step(batch);
  }
  expect_same_bits(of_world.network->parameters(), alone.network->parameters());
}

TEST_P(OptimizerOfSet, StepsAreCountedInside) {
  Training training(world_, {.process_set = own_.id, .sharding = GetParam()});
  const bool even = world_.rank() % 2 == 0;
  for (int step = 0; step < (even ? 1 : 3); ++step) training.step(my_batch(world_, step));
  const int last = own_.members.back();
  if (world_.rank() == last) training.optimizer.zero_grad();
  const auto step = [&] { training.step(my_batch(world_, 5)); };
  if (own_.members.size() == 1) return step();
  expect_error(ErrorCode::mismatch,
               HasSubstr("rank " + std::to_string(last) + " is in step " + (even ? "2" : "4")),
               step);
}

TEST_P(OptimizerOfSet, ForeignAndUnknownSetsAreRefused) {
  expect_error(ErrorCode::invalid_argument, testing::_,
               [&] { Training(world_, {.process_set = ProcessSet(4711)}); });
  if (world_.size() == 1) return;
  // The sets were made in one order: the other one's number is next to this one's.
  const ProcessSet other =
      ProcessSet(world_.rank() % 2 == 0 ? own_.id.number() + 1 : own_.id.number() - 1);
  expect_error(ErrorCode::invalid_argument, HasSubstr("does not hold this rank"),
               [&] { Training(world_, {.process_set = other}); });
}

INSTANTIATE_TEST_SUITE_P(State, OptimizerOfSet, testing::Values(Sharding::off, Sharding::state),
                         [](const auto& of) {
                           return of.param == Sharding::off ? "whole" : "sharded";
                         });

}  // namespace
}  // namespace hora::internal::test
