// GradScaler, and several optimizers in one loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/grad_scaler.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/frameworks/torch/averaging_model.h"
#include "tests/frameworks/torch/network.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Results of training with GradScaler, in every type that gradients travel in; its states, and
// calls in the wrong order.

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// As backward() of a scaled loss that has this gradient.
void backward_scaled(OneWeight& one, const GradScaler& scaler, const torch::Tensor& gradient) {
  static_cast<void>(scaler.scale(torch::ones({})));
  one.weight.backward(gradient);
}

class GradScalerTest : public WorldTest, public testing::WithParamInterface<Compression> {};

TEST_P(GradScalerTest, NumbersAreThoseOfTheFormula) {
  constexpr double kScale = 1000.0;
  OneWeight one(world_, {.compression = GetParam()}, 1000);
  GradScaler scaler(one.optimizer, {.initial_scale = kScale});
  const auto scaled = [](int rank) {
    torch::manual_seed(seed() + static_cast<std::uint64_t>(rank));
    return torch::randn({1000}) * kScale;
  };
  backward_scaled(one, scaler, scaled(world_.rank()));
  scaler.unscale_();
  const auto wire = GetParam() == Compression::float16    ? torch::kHalf
                    : GetParam() == Compression::bfloat16 ? torch::kBFloat16
                                                          : torch::kFloat;
  // float16 is divided after averaging, the others before.
  const double before = wire == torch::kHalf ? 1.0 : 1.0 / kScale;
  const auto average =
      average_model(world_, [&](int rank) { return (scaled(rank) * before).to(wire); });
  const auto expected = average.to(torch::kFloat) * (1.0 / kScale / before);
  EXPECT_TRUE(torch::equal(one.weight.grad(), expected));
}

// A single value in a large gradient, at its begin, amid it and at its end.
TEST_P(GradScalerTest, OneBadValueIsFoundWhereverItIs) {
  constexpr std::int64_t kElements = 100003;
  OneWeight one(world_, {.compression = GetParam()}, kElements);
  GradScaler scaler(one.optimizer);
  for (const std::int64_t where : {std::int64_t{0}, kElements / 2, kElements - 1}) {
    one.optimizer.zero_grad();
    auto gradient = torch::ones({kElements});
    if (last()) gradient[where] = where == 0 ? NAN : -kInfinity;
    backward_scaled(one, scaler, gradient);
    EXPECT_FALSE(scaler.step()) << where;
    scaler.update();
    one.optimizer.zero_grad();
    backward_scaled(one, scaler, torch::ones({kElements}));
    EXPECT_TRUE(scaler.step()) << where;
    scaler.update();
  }
}

// Finite on each rank; but a sum of them need not be, nor what float16 holds.
TEST_P(GradScalerTest, GradientsTooLargeToAddUpSkipTheStepOnAll) {
  OneWeight one(world_, {.compression = GetParam()});
  GradScaler scaler(one.optimizer, {.initial_scale = 1.0});
  const bool is_half = GetParam() == Compression::float16;
  for (const double value : {is_half ? 65520.0 : 2e38, (is_half ? 6e4 : 2e37) / world_.size()}) {
    one.optimizer.zero_grad();
    backward_scaled(one, scaler, torch::full({4}, value));
    EXPECT_EQ(scaler.step(), value < (is_half ? 65520.0 : 2e38));
    scaler.update();
  }
  EXPECT_TRUE(torch::isfinite(one.weight).all().item<bool>());
}

TEST_P(GradScalerTest, EveryTypeOfParameterIsDivided) {
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble}) {
    OneWeight one(world_, {.compression = GetParam()}, 4, type);
    GradScaler scaler(one.optimizer, {.initial_scale = 16.0});
    for (const bool bad : {false, true}) {
      one.optimizer.zero_grad();
      auto gradient = torch::full({4}, 16.0 * 3, type);
      if (bad && last()) gradient[2] = kInfinity;
      backward_scaled(one, scaler, gradient);
      EXPECT_EQ(scaler.step(), !bad) << type;
      scaler.update();
      EXPECT_TRUE(torch::allclose(one.weight, torch::full({4}, -3.0, type))) << type;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GradScalerTest, kCompressions, compression_of);

class GradScalerMisuse : public WorldTest {
 protected:
  void backward(const GradScaler* scaler = nullptr) {
    optimizer_->zero_grad();
    const auto loss = (weight_ * 2.0).sum();
    (scaler != nullptr ? scaler->scale(loss) : loss).backward();
  }
  void expect_gradient(double value) {
    EXPECT_TRUE(torch::equal(weight_.grad(), torch::full({4}, value))) << weight_.grad();
  }
  static void expect_misuse(const std::string& text, const std::function<void()>& misuse) {
    expect_error(ErrorCode::invalid_use, HasSubstr(text), misuse);
  }

  OneWeight one_{world_};
  const torch::Tensor weight_ = one_.weight;
  DistributedOptimizer* const optimizer_ = &one_.optimizer;
};

TEST_F(GradScalerMisuse, CallsOutOfTurn) {
  GradScaler scaler(*optimizer_, {.initial_scale = 64.0});
  expect_misuse("without a step()", [&] { scaler.update(); });
  backward(&scaler);
  expect_misuse("without a step()", [&] { scaler.update(); });
  scaler.unscale_();
  expect_misuse("divided by the scale already", [&] { scaler.unscale_(); });
  EXPECT_TRUE(scaler.step());
  expect_misuse("divided by the scale already", [&] { scaler.unscale_(); });
  expect_misuse("a second time", [&] { scaler.step(); });
  scaler.update();
  EXPECT_EQ(scaler.current_scale(), 64.0);
  backward(&scaler);
  EXPECT_TRUE(scaler.step());
  EXPECT_TRUE(torch::equal(weight_, torch::full({4}, -4.0)));
  backward(&scaler);
  expect_misuse("between backward() and step()", [&] { scaler.update(); });
  optimizer_->synchronize();
  scaler.update();
  expect_gradient(2.0);
}

TEST_F(GradScalerMisuse, ConstructedTooLateOrTwiceAndGoneGradientsAreAsBackwardMakesThem) {
  for (const double scale : {64.0, 4.0}) {
    backward();
    expect_misuse("between backward() and step()", [&] { GradScaler scaler(*optimizer_); });
    optimizer_->step();
    expect_gradient(2.0);
    GradScaler scaler(*optimizer_, {.initial_scale = scale});
    expect_misuse("has one already", [&] { GradScaler second(*optimizer_, {.initial_scale = 2}); });
    backward(&scaler);
    EXPECT_TRUE(scaler.step());
    expect_gradient(2.0);
  }
}

TEST_F(GradScalerMisuse, BothMayBeMoved) {
  GradScaler scaler(*optimizer_, {.initial_scale = 64.0});
  DistributedOptimizer moved(std::move(*optimizer_));
  GradScaler heir(std::move(scaler));
  heir.scale((weight_ * 2.0).sum()).backward();
  EXPECT_TRUE(heir.step());
  heir.update();
  expect_gradient(2.0);
}

TEST_F(GradScalerMisuse, ALossThatWasNotScaled) {
  GradScaler scaler(*optimizer_, {.initial_scale = 64.0});
  backward();
  expect_misuse("scale() has given no loss", [&] { scaler.step(); });
  EXPECT_TRUE(torch::equal(weight_, torch::zeros({4})));
  optimizer_->zero_grad();
  const auto early = scaler.scale((weight_ * 2.0).sum());
  scaler.scale((weight_ * 2.0).sum()).backward();
  EXPECT_TRUE(scaler.step());
  scaler.update();
  early.backward();  // by the scale of the step before
  expect_misuse("scale() has given no loss", [&] { scaler.step(); });
}

TEST_F(GradScalerMisuse, SwitchedOffItDoesNothing) {
  GradScaler scaler(*optimizer_, {.enabled = false});
  const torch::Tensor loss = weight_.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  for (int step = 0; step < 2; ++step) {
    backward(&scaler);
    EXPECT_TRUE(scaler.step());
    scaler.update();
    expect_gradient(2.0);
  }
  weight_.mutable_grad().fill_(std::numeric_limits<float>::infinity());
  EXPECT_TRUE(scaler.step());
  EXPECT_EQ(scaler.current_scale(), 1.0);
}

// Ranks whose data end at different steps; and two optimizers whose gradients come from one loss,
// or whose steps are taken in one loop.

class SeveralOptimizers : public WorldTest {
 protected:
  torch::Tensor loss() { return (a_.weight + b_.weight * 2.0).sum(); }
  void zero_grad() {
    a_.optimizer.zero_grad();
    b_.optimizer.zero_grad();
  }
  static void expect_values(const OneWeight& part, double value) {
    EXPECT_TRUE(torch::equal(part.weight, torch::full({4}, value))) << part.weight;
  }

  OneWeight a_{world_};
  OneWeight b_{world_};
};

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
  const auto refused = [](const std::string& text,
                          const std::vector<DistributedOptimizer*>& optimizers) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&] { GradScaler scaler(optimizers); });
  };
  refused("no optimizer", {});
  refused("optimizer 1 is null", {&a_.optimizer, nullptr});
  refused("optimizer 1 was given before", {&a_.optimizer, &a_.optimizer});
  const ProcessSet set = add_process_set(world_, {0});
  if (world_.rank() != 0) return;
  OneWeight alone(world_, {.process_set = set});
  refused("optimizer 1 averages over another process set", {&a_.optimizer, &alone.optimizer});
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
using SeveralOptimizersJoin = SeveralOptimizers;

// The rank that ran out first comes last to the second one's join(), with parameters that are old.
TEST_F(SeveralOptimizersJoin, OneAfterTheOther) {
  for (int step = 0; step < 2 + 2 * world_.rank(); ++step) {
    zero_grad();
    loss().backward();
    a_.optimizer.step();
    b_.optimizer.step();
  }
  torch::Tensor last_ones = b_.weight.detach().clone();
  a_.optimizer.join();
  if (world_.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(b_.optimizer.join(), world_.size() - 1);
  // The last rank's training is everybody's.
  broadcast_(world_, last_ones, {.root = world_.size() - 1});
  EXPECT_TRUE(torch::equal(b_.weight, last_ones)) << b_.weight;
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

TEST_F(SeveralOptimizersJoin, WhatAJoinedRankCannotDoIsRefused) {
  OneWeight one(world_, {.buffers = {torch::zeros({2})}});
  expect_error(ErrorCode::invalid_use, HasSubstr("with option buffers"),
               [&] { one.optimizer.join(); });
}

}  // namespace
}  // namespace hora::internal::test
