#include "examples/vision/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace vision {
namespace {

constexpr std::int64_t steps = 40;  // of an epoch

TrainingOptions options_of(double rate, int epochs, Decay decay) {
  TrainingOptions options;
  options.optimizer.learning_rate = rate;
  options.epochs = epochs;
  options.schedule.decay = decay;
  options.data.batch = 32;
  return options;
}

TEST(Schedule, ARateOfATenthIsAHundredthFromEpoch30On) {
  const auto schedule = make_schedule(options_of(0.1, 90, Decay::step), 32, steps);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(30 * steps - 1), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(30 * steps), 0.01);
  EXPECT_DOUBLE_EQ(schedule.rate(59 * steps), 0.01);
  EXPECT_DOUBLE_EQ(schedule.rate(60 * steps), 0.001);
}

TEST(Schedule, StepsAreOfTheGivenLengthAndFactor) {
  TrainingOptions options = options_of(1, 10, Decay::step);
  options.schedule.step_epochs = 2.5;
  options.schedule.factor = 0.5;
  const auto schedule = make_schedule(options, 32, steps);
  EXPECT_DOUBLE_EQ(schedule.rate(99), 1);
  EXPECT_DOUBLE_EQ(schedule.rate(100), 0.5);
  EXPECT_DOUBLE_EQ(schedule.rate(200), 0.25);
}

TEST(Schedule, AConstantRateStays) {
  const auto schedule = make_schedule(options_of(0.1, 90, Decay::constant), 32, steps);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(89 * steps), 0.1);
}

TEST(Schedule, HalfACosineEndsAtZero) {
  const auto schedule = make_schedule(options_of(0.2, 10, Decay::cosine), 32, steps);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.2);
  EXPECT_NEAR(schedule.rate(5 * steps), 0.1, 1e-12);
  EXPECT_NEAR(schedule.rate(10 * steps), 0, 1e-12);
}

TEST(Schedule, LinearScalingWarmsUpFromTheUnscaledRate) {
  TrainingOptions options = options_of(0.1, 90, Decay::step);
  options.schedule.scale = true;
  options.schedule.warmup_epochs = 5;
  // 4 ranks, 2 backward passes of one step.
  const auto schedule = make_schedule(options, 32 * 4 * 2, steps);
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.1);
  EXPECT_NEAR(schedule.rate(5 * steps / 2), 0.45, 1e-12);
  EXPECT_DOUBLE_EQ(schedule.rate(5 * steps), 0.8);
  EXPECT_DOUBLE_EQ(schedule.rate(30 * steps), 0.08);
}

TEST(Schedule, TheBaseBatchSaysForWhichStepTheRateIs) {
  TrainingOptions options = options_of(0.1, 90, Decay::constant);
  options.schedule.scale = true;
  options.schedule.base_batch = 256;
  EXPECT_DOUBLE_EQ(learning_rate_options(options, 1024, steps).rate, 0.4);
  options.schedule.warmup_epochs = 1;
  const auto smaller = learning_rate_options(options, 64, steps);
  EXPECT_DOUBLE_EQ(smaller.rate, 0.025);
  EXPECT_LE(smaller.warmup_start, smaller.rate);
  EXPECT_NO_THROW(make_schedule(options, 64, steps));
}

TEST(Schedule, AShareOfAllEpochsWarmsUpInWholeSteps) {
  for (const int epochs : {1, 2, 4, 6, 7, 13}) {
    for (const std::int64_t steps_per_epoch : {1, 4, 11, 24, 391}) {
      TrainingOptions options = options_of(0.05, epochs, Decay::cosine);
      options.schedule.warmup_share = 1.0 / 6;
      const auto chosen = learning_rate_options(options, 32, steps_per_epoch);
      const std::int64_t growing = steps_per_epoch * epochs / 6;
      EXPECT_EQ(std::llround(chosen.warmup_epochs * static_cast<double>(steps_per_epoch)), growing)
          << epochs << " epochs of " << steps_per_epoch;
      EXPECT_DOUBLE_EQ(chosen.warmup_start, 0.05 / static_cast<double>(growing + 1));
    }
  }
}

}  // namespace
}  // namespace vision
