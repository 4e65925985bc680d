// Rounds of averaging that ranks begin or end differently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/gradient_hook.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Ranks that have called differently: every rank gets the same error before anything is updated.

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
    return error.what();
  }
  return {};
}

/// A hook serves one optimizer: it is made with the options.
using MakeOptions = DistributedOptimizerOptions (*)();
struct Way {
  std::string name;
  MakeOptions options;
};

// Everything must hold however buckets are averaged.
class DifferentSteps : public WorldTest, public testing::WithParamInterface<Way> {
 protected:
  // The next averages throw, with the same text everywhere, and leave the parameters alone.
  void expect_refused(Training& training, const std::string& odd_one_is, const std::string& others,
                      const std::function<void()>& call) {
    training.optimizer.complete_parameters();
    const auto before = copies_of(training.network->parameters());
    const std::string error = error_of(call);
    if (world_.size() == 1) {
      EXPECT_EQ(error, "");
      return;
    }
    EXPECT_THAT(error, HasSubstr("rank " + std::to_string(world_.size() - 1) + " is in step " +
                                 odd_one_is + " calls"));
    EXPECT_THAT(error, HasSubstr("in step " + others + " calls of zero_grad()"));
    EXPECT_EQ(broadcast_object(world_, error), error) << "ranks differ in what they say";
    expect_same_bits(training.network->parameters(), before);
    expect_no_more_use(training, error);
  }

  void expect_no_more_use(Training& training, const std::string& error) {
    DistributedOptimizer& optimizer = training.optimizer;
    const Batch batch = my_batch(world_, 99);
    EXPECT_EQ(error_of([&] { optimizer.zero_grad(); }), error);
    EXPECT_EQ(error_of([&] { training.backward(batch); }), error);
    EXPECT_EQ(error_of([&] { optimizer.synchronize(); }), error);
    EXPECT_EQ(error_of([&] { optimizer.step(); }), error);
    { const auto ended = std::move(optimizer); }
    broadcast_parameters(world_, *training.network);
    Training again(world_, GetParam().options(), make_sgd, training.network);
    for (int step = 1; step < 3; ++step) again.step(my_batch(world_, step));
    again.optimizer.complete_parameters();
    expect_alike(world_, again.network);
  }
};

TEST_P(DifferentSteps, ARankThatLeavesOutAStepIsNamed) {
  Training training(world_, GetParam().options());
  for (int step = 0; step < 3; ++step) training.step(my_batch(world_, step));
  if (is_odd_one()) training.optimizer.zero_grad();  // and goes on to the next batch
  expect_refused(training, "4 after 5", "4 after 4", [&] { training.step(my_batch(world_, 4)); });
}

TEST_P(DifferentSteps, ARankThatHadNoPartInADiscardedStepIsNamed) {
  Training training(world_, GetParam().options());
  for (int step = 0; step < 2; ++step) training.step(my_batch(world_, step));
  expect_refused(training, "3 after 4", "3 after 3", [&] {
    training.optimizer.zero_grad();
    if (!is_odd_one()) training.backward(my_batch(world_, 2));
    training.step(my_batch(world_, 3));
  });
}

TEST_P(DifferentSteps, ARankThatDiscardsAStepAloneIsNamed) {
  Training training(world_, GetParam().options());
  for (int step = 0; step < 2; ++step) training.step(my_batch(world_, step));
  training.optimizer.zero_grad();
  training.backward(my_batch(world_, 2));
  const auto end = [&] {
    is_odd_one() ? training.optimizer.zero_grad() : training.optimizer.step();
  };
  if (GetParam().options().sharding == Sharding::state) {
    return expect_refused(training, "3 after 3", "4 after 3", end);
  }
  end();
  expect_refused(training, "3 after 4", "4 after 4", [&] {
    if (!is_odd_one()) training.optimizer.zero_grad();
    training.backward(my_batch(world_, 3));
    training.optimizer.step();
  });
}

TEST_P(DifferentSteps, AStepThatAllDiscardIsLegal) {
  Training training(world_, GetParam().options());
  for (int step = 0; step < 4; ++step) {
    training.step(my_batch(world_, step));
    training.optimizer.zero_grad();
    if (is_odd_one() && step == 2) {
      training.optimizer.synchronize();  // in place of backward()
    } else {
      training.backward(my_batch(world_, 10 + step));
    }
  }
  training.step(my_batch(world_, 20));
  EXPECT_EQ(training.optimizer.statistics().steps, 5U);
}

TEST_P(DifferentSteps, WhatOneRankZeroesByTheModuleDoesNotCount) {
  Training training(world_, GetParam().options());
  for (int step = 0; step < 3; ++step) {
    training.optimizer.zero_grad();
    if (is_odd_one()) {
      const auto guard = training.optimizer.no_sync();
      training.backward(my_batch(world_, 50 + step));
      for (auto& parameter : training.network->parameters()) parameter.mutable_grad().reset();
    }
    training.backward(my_batch(world_, step));
    training.optimizer.step();
  }
  EXPECT_EQ(training.optimizer.statistics().steps, 3U);
}

using Options = DistributedOptimizerOptions;
const std::vector<Way> kWays{
    {"plain", [] { return Options{}; }},
    {"small_buckets", [] { return Options{.bucket_bytes = 64}; }},
    {"predivided_sum",
     [] {
       return Options{.compression = Compression::float16, .gradient_predivide_factor = 0x1p-14};
     }},
    {"float16", [] { return Options{.compression = Compression::float16}; }},
    {"bfloat16", [] { return Options{.compression = Compression::bfloat16}; }},
    {"adasum", [] { return Options{.op = ReduceOp::adasum}; }},
    {"static_graph", [] { return Options{.static_graph = true}; }},
    {"sharded", [] { return Options{.sharding = Sharding::state}; }},
    {"overlap_parameter_gather",
     [] { return Options{.sharding = Sharding::state, .overlap_parameter_gather = true}; }},
    {"buffers", [] { return Options{.buffers = {torch::ones({3})}}; }},
    {"power_sgd", [] { return Options{.hook = std::make_shared<PowerSgd>()}; }},
    {"top_k", [] { return Options{.hook = std::make_shared<TopK>()}; }},
};
INSTANTIATE_TEST_SUITE_P(, DifferentSteps, testing::ValuesIn(kWays),
                         [](const auto& test) { return test.param.name; });

using SameSteps = WorldTest;

TEST_F(SameSteps, AreCountedAnewAfterJoin) {
  Training training(world_);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step <= world_.rank(); ++step) training.step(my_batch(world_, step));
    for (int i = 0; i < world_.rank(); ++i) training.optimizer.zero_grad();
    training.optimizer.join();
  }
  training.step(my_batch(world_, 10));
}

TEST_F(SameSteps, BuffersAreEqualAfterAStepThatIsLeftOut) {
  const auto buffer = torch::zeros({3});
  Training training(world_, {.buffers = {buffer}});
  training.step(my_batch(world_, 0));
  training.optimizer.zero_grad();
  buffer.fill_(5.0 + world_.rank());
  training.backward(my_batch(world_, 1));
  training.optimizer.synchronize();  // and no step()
  EXPECT_TRUE(torch::equal(buffer, torch::full({3}, 5.0)));
}

// The rank that has departed has made all steps but the one that others wait in.
TEST_F(SameSteps, TheLastOneIsNamedToThoseWhoseRankHasGone) {
  Training training(world_);
  for (int step = 0; step < 2; ++step) training.step(my_batch(world_, step));
  if (last()) return;
  const auto before = training.weights();
  expect_error(
      ErrorCode::shut_down,
      AllOf(HasSubstr("has called shutdown()"), HasSubstr("is in step 3"), HasSubstr("join()")),
      [&] { training.step(my_batch(world_, 2)); });
  expect_same_bits(training.weights(), before);
}

// Optimizers that are destroyed after backward() without step().

// A trunk that every rank uses, and a branch that the first rank alone uses, in buckets of their
// own.
struct Branched {
  explicit Branched(const Context& context, DistributedOptimizerOptions options = {})
      : world(context) {
    options.bucket_bytes = 4;
    optimizer.emplace(world, sgd, Named{{"trunk", trunk}, {"branch", branch}, {"unused", unused}},
                      options);
  }
  void backward() {
    torch::Tensor loss = trunk.sum();
    if (world.rank() == 0) loss = loss + branch.sum();
    loss.backward();
  }

  const Context& world;
  torch::Tensor trunk = torch::zeros({3}, torch::requires_grad());
  torch::Tensor branch = torch::zeros({3}, torch::requires_grad());
  torch::Tensor unused = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD sgd{{trunk, branch, unused}, 1.0};
  std::optional<DistributedOptimizer> optimizer;
};

class OpenRound : public WorldTest {
 protected:
  explicit OpenRound(const InitOptions& options = {}) : WorldTest(options) {}

  /// The ranks are together again.
  void expect_next_step() const {
    Branched next(world_);
    next.backward();
    next.optimizer->step();
    EXPECT_TRUE(torch::allclose(next.trunk, torch::full({3}, -1.0)));
  }
};

TEST_F(OpenRound, EndsWhereAllDestroyTheirs) {
  for (const Way& way : kWays) {
    Branched training(world_, way.options());
    training.backward();
    training.optimizer.reset();
    expect_next_step();
  }
}

TEST_F(OpenRound, EndsWithThoseWhoStep) {
  Branched training(world_);
  training.backward();
  if (world_.rank() == 0) {
    training.optimizer.reset();
  } else {
    training.optimizer->step();
    EXPECT_TRUE(torch::allclose(training.trunk, torch::full({3}, -1.0)));
    EXPECT_TRUE(torch::allclose(training.branch, torch::full({3}, -1.0 / world_.size())));
  }
}

// Each informs the others that it does not step; a second one follows one that no rank has used.
TEST_F(OpenRound, MayBeAveragedAlready) {
  for (const bool again : {false, true}) {
    Branched training(world_, {.sharding = Sharding::state});
    training.backward();
    training.optimizer->synchronize();
    if (again) training.backward();
    if (world_.rank() == 0) {
      training.optimizer.reset();
    } else {
      training.optimizer->zero_grad();
    }
  }
}

TEST_F(OpenRound, OfSharesIsNotForSomeToStep) {
  Branched training(world_, {.sharding = Sharding::state});
  training.backward();
  if (world_.rank() == 0) {
    training.optimizer.reset();
  } else {
    expect_error(ErrorCode::mismatch,
                 testing::HasSubstr("rank 0 is in step 1 after 0 calls of zero_grad()"),
                 [&] { training.optimizer->step(); });
    EXPECT_TRUE(torch::equal(training.trunk, torch::zeros({3})));
  }
}

TEST_F(OpenRound, GradientsThatAreNotUsedNeedNotBeRight) {
  Branched training(world_);
  training.backward();
  if (world_.rank() == 0) training.unused.set_data(torch::zeros({5}));
  training.optimizer.reset();
}

// A rank without an open round does not take part; the context's end releases the others.
TEST(OpenRoundAtTheEnd, IsGivenUpWhereARankHasLeftAndAfterShutdown) {
  for (const bool shuts_down : {false, true}) {
    Context world = init();
    Branched training(world);
    if (shuts_down) {
      training.trunk.sum().backward();
      world.shutdown();
    } else {
      if (world.rank() == 0) training.backward();
      barrier(world);
    }
    training.optimizer.reset();
  }
}

class OpenRoundOfOneRank : public OpenRound {
 protected:
  OpenRoundOfOneRank() : OpenRound({.settings = short_stall_warning()}) {}

  static Settings short_stall_warning() {
    Settings settings;
    settings.stall_warning = std::chrono::milliseconds(50);
    return settings;
  }
  bool has_said(const std::string& text) const {
    return lines_.have("destroyed after backward() without step(), " + text);
  }
  void meet() const {
    float value = 0.0F;
    allreduce(world_, view(&value, 1), {.name = "said"});
  }

  const LoggedLines lines_;
};

TEST_F(OpenRoundOfOneRank, IsWaitedForWithAWord) {
  if (world_.size() == 1) GTEST_SKIP() << "no other rank to wait for";
  Branched training(world_);
  if (world_.rank() == 0) {
    training.backward();
    std::thread reader([&] {
      while (!has_said("waits for")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      meet();
    });
    training.optimizer.reset();
    reader.join();
  } else {
    meet();
    EXPECT_FALSE(has_said(""));
    training.optimizer->step();
  }
}

// No other rank opens a round until the first one has continued.
TEST_F(OpenRoundOfOneRank, IsLeftBehindInTheEnd) {
  if (world_.size() == 1) GTEST_SKIP() << "no other rank to wait for";
  for (const Options& options : std::vector<Options>{{},
                                                     {.op = ReduceOp::adasum},
                                                     {.compression = Compression::float16},
                                                     {.buffers = {torch::ones({3})}},
                                                     {.sharding = Sharding::state}}) {
    Branched training(world_, options);
    if (world_.rank() == 0) {
      training.backward();
      training.optimizer.reset();
      EXPECT_TRUE(has_said("gives up waiting"));
      meet();
    } else {
      meet();
      if (options.sharding == Sharding::state) {
        expect_error(ErrorCode::mismatch, testing::HasSubstr("rank 0 is in step 1"),
                     [&] { training.optimizer->step(); });
      } else {
        training.optimizer->step();
        EXPECT_LT(training.trunk.max().item<float>(), 0.0F) << "of the first rank's gradient";
      }
    }
    expect_next_step();
  }
}

}  // namespace
}  // namespace hora::internal::test
