// Trainings, and what lies where in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "frameworks/torch/optimizer/round.h"
#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(DistributedOptimizer, LeavesTheSameBitsOnEveryRankAndInEveryRun) {
  const Context world = init();
  const auto train = [&](const DistributedOptimizerOptions& options) {
    Training training(world, options, make_adam);
    for (int step = 0; step < 10; ++step) training.step(my_batch(world, step, 8));
    expect_alike(world, training.network);
    return training.weights();
  };
  const auto first = train({});
  expect_same_bits(train({}), first);
  // Where a gradient lies must not matter: a bucket for each tensor, or one for all.
  expect_same_bits(train({.bucket_bytes = 64}), first);
  expect_same_bits(train({.bucket_bytes = 1U << 30U}), first);
}

// Buckets laid out anew after the first step, in the order of its gradients; static graphs.

class BucketOrder : public WorldTest {
 protected:
  const Peers peers_ = peers_of(world_, kWorld);
};

/// As far as a round goes: the first rank's gradients have come as `arrivals` says.
void end_round(LayoutChanges& changes, const std::vector<std::size_t>& arrivals,
               const std::vector<bool>& present) {
  for (const std::size_t gradient : arrivals) changes.note(gradient);
  changes.end_round({.arrivals = changes.arrivals()}, present);
}

TEST_F(BucketOrder, WhatNoRankHadComesLastOrNotAtAll) {
  for (const bool fixed : {false, true}) {
    const RoundOptions options{.buckets = {.name = "order"}, .static_graph = fixed};
    LayoutChanges changes(peers_, options, 4);
    EXPECT_FALSE(changes.pending());
    end_round(changes, {2, 0, 3, 2}, {true, false, true, true});
    EXPECT_TRUE(changes.pending());
    EXPECT_THAT(changes.order(),
                fixed ? testing::Matcher<std::vector<std::size_t>>(ElementsAre(3, 0, 2))
                      : ElementsAre(1, 3, 0, 2));
    EXPECT_EQ(changes.leaves_out(1), fixed);
    EXPECT_FALSE(changes.leaves_out(3));
    EXPECT_TRUE(changes.arrivals().empty()) << "it is learned once";
  }
}

TEST_F(BucketOrder, OfARankThatHasJoinedIsTheRoots) {
  const RoundOptions options{.buckets = {.name = "order"}, .static_graph = true};
  LayoutChanges changes(peers_, options, 3);
  changes.take(0);
  EXPECT_FALSE(changes.pending()) << "where the root has not learned it";
  const int root = world_.size() - 1;
  if (world_.rank() == root) end_round(changes, {1, 0}, {true, true, false});
  changes.take(root);
  EXPECT_THAT(changes.order(), ElementsAre(0, 1));
  EXPECT_TRUE(changes.leaves_out(2));
}

TEST_F(BucketOrder, ABucketIsAveragedAsSoonAsItsGradientsHaveComeButGroupsStay) {
  if (world_.size() == 1) return;  // nothing is averaged
  for (const int groups : {0, 2}) {
    // Two in a bucket; their gradients come in the order last, first, third, second.
    Named named;
    for (const char* name : {"0", "1", "2", "3"}) {
      named.insert(name, torch::ones({64}, torch::requires_grad()));
    }
    torch::optim::SGD sgd(named.values(), 0.0);
    DistributedOptimizer optimizer(world_, sgd, named,
                                   {.bucket_bytes = 512, .number_of_groups = groups});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const std::uint64_t expected = groups == 0 && step > 0 ? 1 : 0;
      const torch::Tensor first_two = named["1"] * named["2"];
      const auto before = operations();
      std::uint64_t ended = 0;
      // Two of the four gradients have come, and no more do. Waits at most 10 s.
      first_two.register_hook([&](const torch::Tensor&) {
        barrier(world_);
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        do {
          world_.progress();
          ended = operations() - before - 1;
        } while (ended < expected && std::chrono::steady_clock::now() < end);
      });
      (first_two * named["0"] * named["3"]).sum().backward();
      optimizer.step();
      EXPECT_EQ(ended, expected) << "groups: " << groups << ", step " << step;
    }
  }
}

using StaticGraph = WorldTest;

TEST_F(StaticGraph, WhatNoRankUsesFirstDoesNotHoldItsBucketBackAndThrowsLater) {
  TwoWeights two(world_, {.static_graph = true}, 8);
  for (int step = 0; step < 3; ++step) {
    two.optimizer->zero_grad();
    if (step > 0) {
      expect_error(ErrorCode::invalid_use, AllOf(HasSubstr("'b'"), HasSubstr("static_graph")),
                   [&] { two.b.sum().backward(); });
    }
    const auto before = operations();
    two.a.sum().backward();
    barrier(world_);
    // Submitted by the hook: done without any step(), and within 10 s.
    const std::uint64_t done = world_.size() == 1 ? operations() - before : step > 0 ? 2 : 1;
    for (int wait = 0; wait < 10000 && operations() - before < done; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(operations() - before, done);
    two.optimizer->step();
    EXPECT_EQ(two.a[0].item<float>(), -1.0F - static_cast<float>(step));
  }
}

// Memory put under a parameter after wrapping: training goes on with it, or an error names it.

class ReplacedMemory : public WorldTest,
                       public testing::WithParamInterface<DistributedOptimizerOptions> {};

// Their accumulators are others then; a second backward() finds the first one's gradients taken.
TEST_P(ReplacedMemory, GradientsAreTakenDuringBackwardAgain) {
  Training training(world_, GetParam());
  training.network->to(torch::kDouble);
  training.network->to(torch::kFloat);
  training.optimizer.zero_grad();
  training.backward(my_batch(world_, 0));
  expect_error(ErrorCode::invalid_use, HasSubstr("a second time before step()"),
               [&] { training.backward(my_batch(world_, 0)); });
  training.optimizer.step();
}

TEST_P(ReplacedMemory, AnotherFormIsAnErrorThatNamesTheParameter) {
  for (const bool in_type : {true, false}) {
    Training training(world_, GetParam());
    training.step(my_batch(world_, 0));
    training.optimizer.zero_grad();
    if (in_type) training.network->to(torch::kDouble);
    if (!in_type) training.network->parameters()[2].set_data(torch::zeros({4, 128}));
    expect_error(ErrorCode::invalid_argument,
                 in_type ? ContainsRegex("Parameter '.* type Float.*Double")
                         : ContainsRegex("Parameter '3.weight' had shape .8, 64.*4, 128"),
                 [&] { training.optimizer.step(); });
  }
}

INSTANTIATE_TEST_SUITE_P(
    State, ReplacedMemory,
    testing::Values(DistributedOptimizerOptions{.bucket_bytes = 1024},
                    DistributedOptimizerOptions{.bucket_bytes = 1024, .static_graph = true},
                    DistributedOptimizerOptions{.bucket_bytes = 1024, .sharding = Sharding::state},
                    DistributedOptimizerOptions{.bucket_bytes = 1024,
                                                .sharding = Sharding::state,
                                                .overlap_parameter_gather = true}),
    [](const auto& of) {
      if (of.param.static_graph) return "static_graph";
      if (of.param.overlap_parameter_gather) return "gathered_late";
      return of.param.sharding == Sharding::off ? "whole" : "sharded";
    });

class ReplacedShares : public WorldTest {
 protected:
  const torch::Tensor weight_ = torch::ones({4, 6}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 1.0};

  void step(DistributedOptimizer& optimizer) const {
    optimizer.zero_grad();
    weight_.sum().backward();
    optimizer.step();
  }
};

TEST_F(ReplacedShares, AnotherMemoryOrderIsAnErrorButWithoutSharesItIsNone) {
  const auto values = torch::arange(128 * 256, torch::kFloat).view({256, 128}).t();
  const auto weight = values.contiguous().requires_grad_();  // large enough to stay in place
  torch::optim::SGD sgd({weight}, 1.0);
  for (const Sharding sharding : {Sharding::state, Sharding::off}) {
    DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}}, {.sharding = sharding});
    const bool sharded = sharding == Sharding::state;
    if (sharded || world_.rank() == 0) weight.set_data(values.clone());
    (weight * weight.detach()).sum().backward();
    if (sharded) {
      expect_error(ErrorCode::invalid_argument,
                   AllOf(HasSubstr("'weight' had strides [256, 1]"), HasSubstr("[1, 128]")),
                   [&] { optimizer.step(); });
      optimizer.zero_grad();
      weight.set_data(values.contiguous());
    } else {
      optimizer.step();
    }
  }
  EXPECT_TRUE(torch::equal(weight, torch::zeros({128, 256})));
}

// Also by ranks that would have no part of it.
TEST_F(ReplacedShares, NotDenseIsRefusedByEveryRank) {
  const auto few = torch::ones({2, 6}).narrow(1, 1, 2).detach().requires_grad_();
  torch::optim::SGD sgd({few}, 1.0);
  const auto wrap = [&](const DistributedOptimizerOptions& options) {
    return DistributedOptimizer(world_, sgd, {{"few", few}}, options);
  };
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("'few'"), HasSubstr("not dense in memory")),
               [&] { wrap({.sharding = Sharding::state}); });
  auto optimizer = wrap({.static_graph = true});
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    few.sum().backward();
    optimizer.step();
    few.set_data(few.data().contiguous());
  }
  EXPECT_TRUE(torch::equal(few, torch::full({2, 2}, -2.0)));
}

TEST_F(ReplacedShares, MemoryOfTwoParametersIsAnError) {
  const auto first = torch::ones({30}, torch::requires_grad());
  const auto part = first.detach().narrow(0, 20, 5).requires_grad_();
  torch::optim::SGD sgd({part, first}, 1.0);
  const auto wrap = [&] {
    return DistributedOptimizer(world_, sgd, {{"part", part}, {"first", first}},
                                {.sharding = Sharding::state});
  };
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("'part'"), HasSubstr("'first'"), HasSubstr("share memory")), wrap);
  part.set_data(part.clone());
  auto optimizer = wrap();
  part.set_data(first.detach().narrow(0, 0, 5));
  expect_error(ErrorCode::invalid_argument, HasSubstr("share memory"), [&] { optimizer.step(); });
}

TEST_F(ReplacedShares, WrittenWhileTheyAreGathered) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}},
                                 {.sharding = Sharding::state, .overlap_parameter_gather = true});
  step(optimizer);
  weight_.set_data(torch::full({4, 6}, 5.0));  // the later one of the two
  step(optimizer);
  optimizer.complete_parameters();
  EXPECT_TRUE(torch::equal(weight_, torch::full({4, 6}, 4.0)));
  step(optimizer);
  weight_.detach().zero_();
  if (world_.size() == 1) return;  // nothing is gathered
  expect_error(ErrorCode::invalid_use,
               AllOf(HasSubstr("'weight'"), HasSubstr("complete_parameters()")),
               [&] { optimizer.zero_grad(); });
}

TEST_F(ReplacedShares, BuffersBecomeTheFirstRanksWithEachStep) {
  torch::Tensor buffer = torch::zeros({5});
  const auto count = torch::zeros({}, torch::kLong);
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}}, {.buffers = {buffer, count}});
  for (const int value : {10, 20}) {
    buffer.set_data(torch::full({5}, 1.0 * value + world_.rank()));
    count.fill_(10 * value + world_.rank());
    step(optimizer);
    EXPECT_TRUE(torch::equal(buffer, torch::full({5}, 1.0 * value)));
    EXPECT_EQ(count.item<std::int64_t>(), 10 * value);
  }
  buffer.set_data(torch::zeros({5}, torch::kDouble));
  expect_error(ErrorCode::invalid_argument, HasSubstr("Buffer '0' had type Float"),
               [&] { step(optimizer); });
}

}  // namespace
}  // namespace hora::internal::test
