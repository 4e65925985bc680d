#include <gtest/gtest.h>
#include <hora/torch/learning_rate.h>

#include <cmath>

#include "tests/support/expect_error.h"

namespace hora {
namespace {

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
}

TEST(LearningRate, ScalesByBatchesThatHaveSamples) {
  const auto refused = [](double batch, double reference) {
    internal::test::expect_error(ErrorCode::invalid_argument,
                                 testing::HasSubstr("expected both above 0"),
                                 [&] { linear_scaling(0.1, batch, reference); });
  };
  for (const double none : {0.0, -32.0, std::nan("")}) {
    refused(none, 256);
    refused(256, none);
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

TEST(LearningRate, WithoutDecayStays) {
  const LearningRateOptions options{
      .rate = 0.3, .warmup_epochs = 1, .decay = LearningRateDecay::none};
  EXPECT_DOUBLE_EQ(at(options, 1), 0.3);
  EXPECT_DOUBLE_EQ(at(options, 1000), 0.3);
}

}  // namespace
}  // namespace hora
