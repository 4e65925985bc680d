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

// Goyal et al., section 5.1: 256 GPUs of 32 images each, 0.1 for 256 images, 90 epochs.
constexpr std::int64_t kSteps = 157;  // an epoch's
const LearningRateOptions kGoyal{
    .rate = linear_scaling(0.1, 256 * 32, 256), .warmup_start = 0.1, .warmup_epochs = 5};

double at(const LearningRateOptions& options, double epoch) {
  return learning_rate(options, static_cast<std::int64_t>(epoch * kSteps), kSteps);
}

TEST(LearningRate, ScalesLinearly) {
  EXPECT_DOUBLE_EQ(linear_scaling(0.1, 8192, 256), 3.2);
  EXPECT_DOUBLE_EQ(linear_scaling(0.05, 32, 32), 0.05);
  EXPECT_DOUBLE_EQ(linear_scaling(0.1, 64, 256), 0.025);
  for (const double none : {0.0, -32.0, std::nan("")}) {
    expect_error(ErrorCode::invalid_argument, HasSubstr("expected both above 0"),
                 [&] { linear_scaling(0.1, none, 256); });
    expect_error(ErrorCode::invalid_argument, HasSubstr("expected both above 0"),
                 [&] { linear_scaling(0.1, 256, none); });
  }
}

TEST(LearningRate, WarmsUpByEqualAmountsFromTheUnscaledRate) {
  EXPECT_DOUBLE_EQ(at(kGoyal, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(kGoyal, 2.5), 1.65);
  EXPECT_DOUBLE_EQ(at(kGoyal, 5), 3.2);
  for (std::int64_t step = 1; step <= 5 * kSteps; ++step) {
    EXPECT_NEAR(learning_rate(kGoyal, step, kSteps) - learning_rate(kGoyal, step - 1, kSteps),
                3.1 / (5 * kSteps), 1e-12)
        << step;
  }
}

TEST(LearningRate, FallsByTenEvery30Epochs) {
  EXPECT_DOUBLE_EQ(learning_rate(kGoyal, 30 * kSteps - 1, kSteps), 3.2);
  EXPECT_DOUBLE_EQ(at(kGoyal, 30), 0.32);
  EXPECT_DOUBLE_EQ(learning_rate(kGoyal, 60 * kSteps - 1, kSteps), 0.32);
  EXPECT_DOUBLE_EQ(at(kGoyal, 60), 0.032);
  EXPECT_DOUBLE_EQ(at(kGoyal, 89), 0.032);
  EXPECT_DOUBLE_EQ(at(kGoyal, 90), 0.0032);
  // As STL-10's recipe counts: .01 from epoch 30 on.
  const LearningRateOptions plain{.rate = 0.1};
  EXPECT_DOUBLE_EQ(at(plain, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(plain, 30 * kSteps - 1, kSteps), 0.1);
  EXPECT_DOUBLE_EQ(at(plain, 30), 0.01);
  EXPECT_DOUBLE_EQ(at({.rate = 0.3, .decay = LearningRateDecay::none}, 1000), 0.3);
}

TEST(LearningRate, FallsByHalfACosine) {
  const LearningRateOptions cosine{.rate = 2.0,
                                   .warmup_start = 0.0,
                                   .warmup_epochs = 10,
                                   .decay = LearningRateDecay::cosine,
                                   .epochs = 90,
                                   .final_rate = 0.5};
  EXPECT_DOUBLE_EQ(at(cosine, 0), 0.0);
  EXPECT_DOUBLE_EQ(at(cosine, 5), 1.0);
  EXPECT_DOUBLE_EQ(at(cosine, 10), 2.0);
  EXPECT_NEAR(at(cosine, 30), 0.5 + 1.5 * 0.85355339059327373, 1e-12);  // (1 + cos 45 degrees) / 2
  EXPECT_NEAR(at(cosine, 50), 1.25, 1e-12);
  EXPECT_DOUBLE_EQ(at(cosine, 90), 0.5);
  EXPECT_DOUBLE_EQ(at(cosine, 120), 0.5);
  for (std::int64_t step = 10 * kSteps + 1; step < 90 * kSteps; ++step) {
    ASSERT_LT(learning_rate(cosine, step, kSteps), learning_rate(cosine, step - 1, kSteps)) << step;
  }
}

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
  constexpr auto cosine = LearningRateDecay::cosine;
  const std::pair<const char*, LearningRateOptions> cases[] = {
      {"rate is nan", {.rate = std::nan("")}},
      {"rate is -1", {.rate = -1.0}},
      {"warmup_start is 0.2", {.rate = 0.1, .warmup_start = 0.2}},
      {"warmup_epochs is -1", {.warmup_epochs = -1}},
      {"decay_epochs is 0", {.decay_epochs = 0}},
      {"decay_factor is 2", {.decay_factor = 2}},
      {"epochs is 5", {.warmup_epochs = 5, .decay = cosine, .epochs = 5}},
      {"final_rate is 1", {.decay = cosine, .final_rate = 1}}};
  for (const auto& [text, options] : cases) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&, &options = options] { LearningRateSchedule(options, 10); });
  }
  expect_error(ErrorCode::invalid_argument, HasSubstr("steps_per_epoch is 0"),
               [] { LearningRateSchedule(kOptions, 0); });
}

}  // namespace
}  // namespace hora::internal::test
