// Trainings, and what lies where in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
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

// With BatchNorm, whose running statistics differ between ranks until they are broadcast.
std::vector<torch::Tensor> train(const Context& world,
                                 const DistributedOptimizerOptions& options = {}) {
  torch::manual_seed(seed() + world.rank());  // unequal until broadcast_parameters
  torch::nn::Sequential network(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                                torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(64, 5));
  torch::optim::Adam adam(network->parameters(), torch::optim::AdamOptions(0.01));
  DistributedOptimizer optimizer(world, adam, network->named_parameters(), options);
  broadcast_parameters(world, *network);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    loss_of(network, my_batch(world, step, 8)).backward();
    optimizer.step();
  }
  broadcast_buffers(world, *network);
  auto all = network->parameters();
  for (const auto& buffer : network->buffers()) all.push_back(buffer);
  return copies_of(all);
}

TEST(DistributedOptimizer, LeavesTheSameBitsOnEveryRankAndInEveryRun) {
  const Context world = init();
  const auto first = train(world);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(equals_root(world, first[i])) << i;
  expect_same_bits(train(world), first);
  // Where a gradient lies must not matter: a bucket for each tensor, or one for all.
  expect_same_bits(train(world, {.bucket_bytes = 64}), first);
  expect_same_bits(train(world, {.bucket_bytes = 1U << 30U}), first);
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

/// Four parameters, two in a bucket, whose gradients come in the order last, first, third, second.
class Chain {
 public:
  explicit Chain(const Context& world, DistributedOptimizerOptions options = {})
      : world_(world), sgd_(parameters_, 0.0) {
    torch::OrderedDict<std::string, torch::Tensor> named;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      named.insert(std::to_string(i), parameters_[i]);
    }
    options.bucket_bytes = 512;
    optimizer_.emplace(world_, sgd_, named, options);
  }

  /// Buckets whose average ends while two of the four gradients have come, and no more do. As long
  /// as fewer than `expected` have, it waits, at most 10 s.
  std::uint64_t step(std::uint64_t expected) {
    optimizer_->zero_grad();
    const torch::Tensor first_two = parameters_[1] * parameters_[2];
    std::uint64_t ended = 0;
    const auto before = world_.statistics().operations;
    first_two.register_hook([&](const torch::Tensor&) {
      barrier(world_);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      do {
        world_.progress();
        ended = world_.statistics().operations - before - 1;
      } while (ended < expected && std::chrono::steady_clock::now() < end);
    });
    (first_two * parameters_[0] * parameters_[3]).sum().backward();
    optimizer_->step();
    return ended;
  }

 private:
  static torch::Tensor parameter() { return torch::ones({64}, torch::requires_grad()); }

  const Context& world_;
  const std::vector<torch::Tensor> parameters_{parameter(), parameter(), parameter(), parameter()};
  torch::optim::SGD sgd_;
  std::optional<DistributedOptimizer> optimizer_;
};

TEST_F(BucketOrder, ABucketIsAveragedAsSoonAsItsGradientsHaveComeButGroupsStay) {
  if (world_.size() == 1) return;  // nothing is averaged
  Chain chain(world_);
  Chain groups(world_, {.number_of_groups = 2});
  for (const std::uint64_t ended : {0U, 1U, 1U}) {
    EXPECT_EQ(chain.step(ended), ended);
    EXPECT_EQ(groups.step(0), 0u);
  }
}

class StaticGraph : public WorldTest {
 protected:
  void step() {
    two_.optimizer->zero_grad();
    two_.a.sum().backward();
    two_.optimizer->step();
  }
  TwoWeights two_{world_, {.static_graph = true}, 8};
};

TEST_F(StaticGraph, WhatNoRankUsesDoesNotHoldItsBucketBack) {
  step();
  const auto before = operations();
  two_.optimizer->zero_grad();
  two_.a.sum().backward();
  // Submitted by the hook: done without any step().
  barrier(world_);
  if (world_.size() > 1) {
    EXPECT_EQ(operations() - before, 2U);
  }
  two_.optimizer->step();
  EXPECT_EQ(two_.a[0].item<float>(), -2.0F);
}

TEST_F(StaticGraph, AGradientThatTheFirstStepDidNotHaveThrows) {
  for (int i = 0; i < 2; ++i) {
    step();
    two_.optimizer->zero_grad();
    expect_error(ErrorCode::invalid_use, AllOf(HasSubstr("'b'"), HasSubstr("static_graph")),
                 [&] { two_.b.sum().backward(); });
  }
}

// Memory put under a parameter after wrapping: training goes on with it, or an error names it.

template <class T>
std::string saved(const T& object) {
  std::ostringstream stream;
  torch::save(object, stream);
  return std::move(stream).str();
}

template <class T>
void load(T& object, const std::string& text) {
  std::istringstream stream(text);
  torch::load(object, stream);
}

class ReplacedMemory : public WorldTest,
                       public testing::WithParamInterface<DistributedOptimizerOptions> {};

TEST_P(ReplacedMemory, ACheckpointLoadedIntoAWrappedModelResumes) {
  const auto train = [&](Training& training, int first) {
    for (int step = first; step < first + 3; ++step) training.step(my_batch(world_, step));
    training.optimizer.complete_parameters();
  };
  Training whole(world_, GetParam(), make_adam);
  train(whole, 0);
  const std::string model = saved(whole.network);
  const std::string state = saved(*whole.wrapped);
  train(whole, 3);
  Training resumed(world_, GetParam(), make_adam);
  load(resumed.network, model);
  load(*resumed.wrapped, state);
  train(resumed, 3);
  expect_same_bits(resumed.network->parameters(), whole.network->parameters());
}

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
  for (const Sharding sharding : {Sharding::state, Sharding::off}) {
    DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}}, {.sharding = sharding});
    step(optimizer);
    weight_.set_data(torch::arange(24, torch::kFloat).view({6, 4}).t());
    if (sharding == Sharding::off) {
      step(optimizer);
    } else {
      expect_error(ErrorCode::invalid_argument,
                   AllOf(HasSubstr("'weight' had strides [6, 1]"), HasSubstr("[1, 4]")),
                   [&] { step(optimizer); });
      weight_.set_data(torch::ones({4, 6}));
    }
  }
  EXPECT_TRUE(torch::equal(weight_, torch::arange(-1, 23, torch::kFloat).view({6, 4}).t()));
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

TEST_F(ReplacedShares, BuffersOfAnotherForm) {
  torch::Tensor buffer = torch::zeros({3});
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}}, {.buffers = {buffer}});
  step(optimizer);
  buffer.set_data(torch::full({3}, 1.0 * world_.rank()));
  step(optimizer);
  EXPECT_TRUE(torch::equal(buffer, torch::zeros({3})));
  buffer.set_data(torch::zeros({3}, torch::kDouble));
  expect_error(ErrorCode::invalid_argument, HasSubstr("Buffer '0' had type Float"),
               [&] { step(optimizer); });
}

}  // namespace
}  // namespace hora::internal::test
