// Trainings, and what lies where in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
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

using Change = std::function<void(torch::nn::Sequential&)>;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Results of training with DistributedOptimizer.

constexpr std::int64_t batch_per_rank = 8;
constexpr int kStepsOfTraining = 10;

// Both orders of summation add the same n terms: a gradient differs by about n rounding errors of
// the terms' size (below 1 here), and ten steps of a smooth network at this learning rate amplify
// that less than tenfold: 32 * 2^-52 * 10 = 7e-14. Every real mistake (a rank left out, a sum for
// an average) moves parameters by more than 1e-4.
void equals_one_rank(torch::ScalarType type, double tolerance) {
  const Context world = init();
  auto alone = small_network(seed(), type);
  auto together = small_network(seed(), type);
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD sgd_alone(alone->parameters(), options);
  torch::optim::SGD sgd(together->parameters(), options);
  DistributedOptimizer optimizer(world, sgd, together->named_parameters());
  const auto before = copies_of(alone->parameters());
  for (int step = 0; step < kStepsOfTraining; ++step) {
    const Batch batch = whole_batch(seed() + step, batch_per_rank * world.size(), type);
    sgd_alone.zero_grad();
    loss_of(alone, batch).backward();
    sgd_alone.step();
    optimizer.zero_grad();
    loss_of(together, part_of(batch, world.rank(), batch_per_rank)).backward();
    optimizer.step();
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::allclose(alone->parameters()[i], together->parameters()[i], 0.0, tolerance));
  }
  EXPECT_FALSE(torch::allclose(before[0], alone->parameters()[0])) << "the network did not learn";
  EXPECT_EQ(optimizer.statistics().steps, std::uint64_t{kStepsOfTraining});
}

TEST(DistributedOptimizer, EqualsOneRankWithTheWholeBatch) {
  equals_one_rank(torch::kDouble, 1e-12);
  equals_one_rank(torch::kFloat, 1e-12 * (1 << 29));  // 2^-23 in place of 2^-52
}

// With BatchNorm, whose running statistics differ between ranks until they are broadcast.
std::vector<torch::Tensor> train(const Context& world,
                                 const DistributedOptimizerOptions& options = {}) {
  torch::manual_seed(seed() + world.rank());  // unequal until broadcast_parameters
  torch::nn::Sequential network(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                                torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(64, 5));
  torch::optim::Adam adam(network->parameters(), torch::optim::AdamOptions(0.01));
  DistributedOptimizer optimizer(world, adam, network->named_parameters(), options);
  broadcast_parameters(world, *network);
  for (int step = 0; step < kStepsOfTraining; ++step) {
    const Batch batch = whole_batch(seed() + step, batch_per_rank * world.size());
    optimizer.zero_grad();
    loss_of(network, part_of(batch, world.rank(), batch_per_rank)).backward();
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

TEST(DistributedOptimizer, TakesGradientsThatTheUserZeroedInPlace) {
  const Context world = init();
  const auto run = [&](bool in_place) {
    auto network = small_network(seed());
    torch::optim::SGD sgd(network->parameters(), 0.1);
    DistributedOptimizer optimizer(world, sgd, network->named_parameters());
    const void* place = nullptr;
    for (int step = 0; step < 3; ++step) {
      for (auto& parameter : network->parameters()) {
        if (in_place && step > 0) parameter.mutable_grad().zero_();
      }
      if (!in_place) optimizer.zero_grad();
      const Batch batch = whole_batch(seed() + step, batch_per_rank * world.size());
      loss_of(network, part_of(batch, world.rank(), batch_per_rank)).backward();
      optimizer.step();
      const void* now = network->parameters()[0].grad().data_ptr();
      EXPECT_TRUE(place == nullptr || place == now) << "the gradient left its bucket";
      place = now;
    }
    return copies_of(network->parameters());
  };
  const auto undefined = run(false);
  const auto zeroed = run(true);
  expect_same_bits(undefined, zeroed);
}

TEST(DistributedOptimizer, KeepsTheMemoryOrderOfParameters) {
  const Context world = init();
  const auto gradients = [&](torch::MemoryFormat weights, torch::MemoryFormat images) {
    torch::manual_seed(seed());
    torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 3));
    convolution->weight.set_data(convolution->weight.contiguous(weights));
    torch::optim::SGD sgd(convolution->parameters(), 0.1);
    DistributedOptimizer optimizer(world, sgd, convolution->named_parameters());
    const Batch batch = part_of(whole_batch(seed(), 2 * world.size()), world.rank(), 2);
    convolution->forward(batch.images.contiguous(images)).square().sum().backward();
    optimizer.synchronize();
    EXPECT_EQ(convolution->weight.grad().strides(), convolution->weight.strides());
    return convolution->weight.grad().contiguous();
  };
  const auto row_major = torch::MemoryFormat::Contiguous;
  const auto channels_last = torch::MemoryFormat::ChannelsLast;
  const auto expected = gradients(row_major, row_major);
  // Each way of computing adds up 32 products of numbers below 100 in an order of its own.
  EXPECT_TRUE(torch::allclose(gradients(channels_last, channels_last), expected, 1e-4, 1e-3));
  EXPECT_TRUE(torch::allclose(gradients(row_major, channels_last), expected, 1e-4, 1e-3));
  EXPECT_TRUE(torch::allclose(gradients(channels_last, row_major), expected, 1e-4, 1e-3));
}

TEST(DistributedOptimizer, TypesMayBeMixed) {
  const Context world = init();
  const std::vector<torch::ScalarType> types{torch::kHalf, torch::kDouble, torch::kBFloat16,
                                             torch::kFloat};
  torch::OrderedDict<std::string, torch::Tensor> named;
  for (const auto type : types) {
    named.insert(torch::toString(type), torch::ones({5}, torch::dtype(type)).requires_grad_());
  }
  torch::optim::SGD sgd(named.values(), 1.0);
  DistributedOptimizer optimizer(world, sgd, named, {.op = ReduceOp::sum});
  // The half types have no backward of their own in double: all but one are given a gradient.
  for (const auto& parameter : named.values()) {
    if (parameter.scalar_type() != torch::kFloat)
      parameter.backward(torch::ones_like(parameter) * 2);
  }
  optimizer.synchronize();
  for (const auto& parameter : named.values()) {
    ASSERT_EQ(parameter.grad().defined(), parameter.scalar_type() != torch::kFloat);
    if (!parameter.grad().defined()) continue;
    EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
    EXPECT_TRUE(torch::equal(parameter.grad(), torch::full_like(parameter, 2 * world.size())));
  }
}

// Buckets laid out anew after the first step, in the order of its gradients; static graphs.

class BucketOrder : public testing::Test {
 protected:
  const Context world_ = init();
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

TEST_F(BucketOrder, HasTheSameBitsAsGroupsWhichStayAsTheyAre) {
  // Buckets of a few gradients each, so that the order matters.
  Training learned(world_, {.bucket_bytes = 512});
  Training grouped(world_, {.number_of_groups = 3});
  for (int step = 0; step < 4; ++step) {
    learned.step(my_batch(world_, step));
    grouped.step(my_batch(world_, step));
    expect_same_bits(learned.network->parameters(), grouped.network->parameters());
  }
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

TEST_F(BucketOrder, ABucketIsAveragedAsSoonAsItsGradientsHaveCome) {
  if (world_.size() == 1) return;  // nothing is averaged
  Chain chain(world_);
  EXPECT_EQ(chain.step(0), 0u);
  EXPECT_EQ(chain.step(1), 1u);
  EXPECT_EQ(chain.step(1), 1u);
}

TEST_F(BucketOrder, OfGroupsStays) {
  if (world_.size() == 1) return;
  Chain chain(world_, {.number_of_groups = 2});
  for (int step = 0; step < 3; ++step) EXPECT_EQ(chain.step(0), 0u);
}

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

// Each changes the values as well, so that the old ones cannot pass for them.
const std::pair<const char*, Change> kChanges[] = {
    {"set_data",
     [](auto& network) {
       for (auto& parameter : network->parameters()) parameter.set_data(parameter.data() * 0.5);
     }},
    {"load",
     [](auto& network) {
       auto other = small_network(seed() + 1);
       load(network, saved(other));
     }},
    {"to_another_type_and_back",
     [](auto& network) {
       network->to(torch::kDouble);
       for (auto& parameter : network->parameters()) parameter.data().mul_(0.5);
       network->to(torch::kFloat);
     }},
    {"copy_in_place",
     [](auto& network) {
       const torch::NoGradGuard no_grad;
       for (auto& parameter : network->parameters()) parameter.mul_(0.5);
     }},
    {"one_parameter",
     [](auto& network) {
       auto weight = network->parameters().front();
       weight.set_data(torch::full_like(weight, 0.1));
     }},
};

enum class When { after_step, after_zero_grad, before_step };

class ReplacedMemory : public testing::TestWithParam<DistributedOptimizerOptions> {
 protected:
  void train(Training& training, int step, const std::function<void(When)>& at) const {
    training.optimizer.zero_grad();
    at(When::after_zero_grad);
    training.backward(my_batch(world_, step));
    training.optimizer.synchronize();
    at(When::before_step);
    training.optimizer.step();
    at(When::after_step);
  }

  // LibTorch alone, but for the averages.
  void train_plain(torch::nn::Sequential& network, torch::optim::Optimizer& plain, int step,
                   const std::function<void(When)>& at) const {
    network->zero_grad();
    at(When::after_zero_grad);
    loss_of(network, my_batch(world_, step)).backward();
    for (auto& parameter : network->parameters()) allreduce_(world_, parameter.mutable_grad());
    at(When::before_step);
    plain.step();
    at(When::after_step);
  }

  const Context world_ = init();
};

TEST_P(ReplacedMemory, TrainingGoesOnWithIt) {
  for (const auto& [name, change] : kChanges) {
    for (const When when : {When::after_step, When::after_zero_grad, When::before_step}) {
      SCOPED_TRACE(std::string(name) + " at " + std::to_string(static_cast<int>(when)));
      Training training(world_, GetParam());
      auto network = small_network(seed());
      const auto plain = make_sgd(network->parameters());
      for (int step = 0; step < 4; ++step) {
        const auto changing = [&](torch::nn::Sequential& of, const Change& by) {
          return [&, when, step](When at) {
            if (step == 1 && at == when) by(of);
          };
        };
        const bool late =
            GetParam().overlap_parameter_gather && when == When::after_step && step == 1;
        train(training, step, changing(training.network, [&](auto& of) {
                if (late) training.optimizer.complete_parameters();
                change(of);
              }));
        train_plain(network, *plain, step, changing(network, change));
      }
      training.optimizer.complete_parameters();
      expect_same_bits(training.network->parameters(), network->parameters());
    }
  }
}

TEST_P(ReplacedMemory, ACheckpointLoadedIntoAWrappedModelResumes) {
  Training whole(world_, GetParam(), make_adam);
  for (int step = 0; step < 3; ++step) whole.step(my_batch(world_, step));
  whole.optimizer.complete_parameters();
  const std::string model = saved(whole.network);
  const std::string state = saved(*whole.wrapped);
  for (int step = 3; step < 6; ++step) whole.step(my_batch(world_, step));
  whole.optimizer.complete_parameters();

  Training resumed(world_, GetParam(), make_adam);
  load(resumed.network, model);
  load(*resumed.wrapped, state);
  for (int step = 3; step < 6; ++step) resumed.step(my_batch(world_, step));
  resumed.optimizer.complete_parameters();
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
  const auto refused = [&](const Change& change, const testing::Matcher<std::string>& text) {
    Training training(world_, GetParam());
    training.step(my_batch(world_, 0));
    training.optimizer.zero_grad();
    change(training.network);
    expect_error(ErrorCode::invalid_argument, text, [&] { training.optimizer.step(); });
  };
  refused([](auto& network) { network->to(torch::kDouble); },
          AllOf(HasSubstr("Parameter '"), HasSubstr("type Float"), HasSubstr("Double")));
  refused(
      [](auto& network) {
        network->parameters()[2].set_data(torch::zeros({4, 128}));
      },
      AllOf(HasSubstr("Parameter '3.weight' had shape [8, 64]"), HasSubstr("[4, 128]")));
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

class ReplacedShares : public testing::Test {
 protected:
  const Context world_ = init();
  const torch::Tensor weight_ = torch::ones({4, 6}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 1.0};

  void step(DistributedOptimizer& optimizer) const {
    optimizer.zero_grad();
    weight_.sum().backward();
    optimizer.step();
  }
};

TEST_F(ReplacedShares, AnotherMemoryOrderIsAnError) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}},
                                 {.sharding = Sharding::state});
  step(optimizer);
  weight_.set_data(torch::ones({6, 4}).t());
  expect_error(ErrorCode::invalid_argument,
               AllOf(HasSubstr("'weight' had strides [6, 1]"), HasSubstr("[1, 4]")),
               [&] { step(optimizer); });
}

TEST_F(ReplacedShares, WithoutSharesItIsNone) {
  DistributedOptimizer optimizer(world_, sgd_, {{"weight", weight_}});
  step(optimizer);
  weight_.set_data(torch::arange(24, torch::kFloat).view({6, 4}).t());
  optimizer.zero_grad();
  (weight_ * weight_).sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight_, -torch::arange(24, torch::kFloat).view({6, 4}).t()));
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
