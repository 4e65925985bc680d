#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

const LearningRateOptions kOptions{.rate = 0.8, .warmup_start = 0.1, .warmup_epochs = 1};

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

TEST(LearningRateSchedule, SetsEveryGroupOfAnOptimizer) {
  const LearningRateSchedule schedule(kOptions, 10);
  const auto a = torch::ones({2}).requires_grad_();
  const auto b = torch::ones({3}).requires_grad_();
  torch::optim::SGD sgd(
      {torch::optim::OptimizerParamGroup({a}), torch::optim::OptimizerParamGroup({b})},
      torch::optim::SGDOptions(7.0));
  EXPECT_DOUBLE_EQ(schedule.apply(sgd, 5), 0.45);
  EXPECT_THAT(rates_of(sgd), testing::Each(testing::DoubleEq(0.45)));
  EXPECT_DOUBLE_EQ(schedule.rate(300), 0.08);
  torch::optim::Adam adam({a}, torch::optim::AdamOptions(7.0));
  schedule.apply(adam, 300);
  EXPECT_THAT(rates_of(adam), testing::ElementsAre(testing::DoubleEq(0.08)));
}

TEST(LearningRateSchedule, ADistributedOptimizerStepsWithTheRate) {
  const Context world = init();
  const LearningRateSchedule schedule(kOptions, 4);
  const auto weight = torch::zeros({3}, torch::kDouble).requires_grad_();
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(7.0));
  DistributedOptimizer optimizer(world, sgd, {{"weight", weight}});
  double expected = 0.0;
  for (const std::int64_t step : {0, 1, 4, 119, 120}) {
    expected -= schedule.apply(optimizer, step);
    optimizer.zero_grad();
    weight.sum().backward();
    optimizer.step();
    EXPECT_NEAR(weight[0].item<double>(), expected, 1e-12) << step;
  }
}

TEST(LearningRateSchedule, RefusesOptionsOutOfRange) {
  const auto expect_refused = [](const std::string& text, const LearningRateOptions& options,
                                 std::int64_t steps = 10) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&] { LearningRateSchedule(options, steps); });
  };
  expect_refused("steps_per_epoch is 0", kOptions, 0);
  expect_refused("rate is nan", {.rate = std::nan("")});
  expect_refused("rate is -1", {.rate = -1.0});
  expect_refused("warmup_start is 0.2", {.rate = 0.1, .warmup_start = 0.2});
  expect_refused("warmup_epochs is -1", {.warmup_epochs = -1});
  expect_refused("decay_epochs is 0", {.decay_epochs = 0});
  expect_refused("decay_factor is 2", {.decay_factor = 2});
  expect_refused("epochs is 5",
                 {.warmup_epochs = 5, .decay = LearningRateDecay::cosine, .epochs = 5});
  expect_refused("final_rate is 1", {.decay = LearningRateDecay::cosine, .final_rate = 1});
}

}  // namespace
}  // namespace hora::internal::test
