// GradScaler's states, and calls in the wrong order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/grad_scaler.h>

#include <limits>
#include <optional>

#include "tests/frameworks/torch/network.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

class GradScalerMisuse : public testing::Test {
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

  const Context world_ = init();
  const torch::Tensor weight_ = torch::zeros({4}, torch::requires_grad());
  torch::optim::SGD sgd_{{weight_}, 1.0};
  std::optional<DistributedOptimizer> optimizer_{
      std::in_place, world_, sgd_,
      torch::OrderedDict<std::string, torch::Tensor>{{"weight", weight_}}};
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
}

TEST_F(GradScalerMisuse, TheScaleMayNotChangeWhileGradientsAreUnderWay) {
  GradScaler scaler(*optimizer_, {.initial_scale = 64.0});
  backward(&scaler);
  EXPECT_TRUE(scaler.step());
  backward(&scaler);
  expect_misuse("between backward() and step()", [&] { scaler.update(); });
  optimizer_->synchronize();
  scaler.update();
  expect_gradient(2.0);
}

TEST_F(GradScalerMisuse, ConstructedTooLate) {
  backward();
  expect_misuse("between backward() and step()", [&] { GradScaler scaler(*optimizer_); });
  optimizer_->step();
  expect_gradient(2.0);
}

TEST_F(GradScalerMisuse, OneOptimizerHasOne) {
  GradScaler scaler(*optimizer_, {.initial_scale = 64.0});
  expect_misuse("has one already", [&] { GradScaler second(*optimizer_, {.initial_scale = 2.0}); });
  backward(&scaler);
  EXPECT_TRUE(scaler.step());
  expect_gradient(2.0);
}

TEST_F(GradScalerMisuse, WithoutItGradientsAreAsBackwardMakesThem) {
  {
    GradScaler scaler(*optimizer_, {.initial_scale = 64.0});
    backward(&scaler);
    EXPECT_TRUE(scaler.step());
    expect_gradient(2.0);
  }
  backward();
  optimizer_->step();
  expect_gradient(2.0);
  GradScaler next(*optimizer_, {.initial_scale = 4.0});
  backward(&next);
  EXPECT_TRUE(next.step());
  expect_gradient(2.0);
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

}  // namespace
}  // namespace hora::internal::test
