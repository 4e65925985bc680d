#include "frameworks/torch/optimizer/loss_scale.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <limits>

namespace hora::internal {
namespace {

TEST(LossScale, GrowsAfterTheIntervalAndCountsAnew) {
  const GradScalerOptions options{.growth_interval = 3};
  LossScale scale{1024.0, 0};
  for (int step = 1; step <= 2; ++step) {
    scale = next_scale(scale, options, true);
    EXPECT_EQ(scale, (LossScale{1024.0, step}));
  }
  scale = next_scale(scale, options, true);
  EXPECT_EQ(scale, (LossScale{2048.0, 0}));
}

TEST(LossScale, BacksOffAtOnceAndForgetsWhatItHasCounted) {
  const GradScalerOptions options{.backoff_factor = 0.25, .growth_interval = 3};
  EXPECT_EQ(next_scale({1024.0, 2}, options, false), (LossScale{256.0, 0}));
}

TEST(LossScale, StaysWithFactorsOfOne) {
  const GradScalerOptions options{
      .growth_factor = 1.0, .backoff_factor = 1.0, .growth_interval = 1};
  check_options(options);
  EXPECT_EQ(next_scale({1000.0, 0}, options, true), (LossScale{1000.0, 0}));
  EXPECT_EQ(next_scale({1000.0, 0}, options, false), (LossScale{1000.0, 0}));
}

TEST(LossScale, StaysWithinFloat32) {
  const GradScalerOptions options{.growth_interval = 1};
  const double most = std::numeric_limits<float>::max();
  EXPECT_EQ(next_scale({most, 0}, options, true).scale, most);
  const double least = std::numeric_limits<float>::min();
  EXPECT_EQ(next_scale({least, 0}, options, false).scale, least);
}

TEST(LossScale, OptionsOutOfRangeAreRefusedByName) {
  const auto text = [](const GradScalerOptions& options) {
    try {
      check_options(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& whole, const char* part) {
    return whole.find(part) != std::string::npos;
  };
  EXPECT_EQ(text({}), "");
  EXPECT_TRUE(has(text({.initial_scale = 0.0}), "initial_scale is 0"));
  EXPECT_TRUE(has(text({.growth_factor = 0.9}), "growth_factor is 0.9"));
  EXPECT_TRUE(has(text({.backoff_factor = 1.1}), "backoff_factor is 1.1"));
  EXPECT_TRUE(has(text({.backoff_factor = 0.0}), "backoff_factor is 0"));
  EXPECT_TRUE(has(text({.growth_interval = 0}), "growth_interval is 0"));
  EXPECT_TRUE(has(text({.initial_scale = std::numeric_limits<double>::quiet_NaN()}), "nan"));
}

TEST(LossScale, TheDescriptionTellsOptionsApart) {
  const std::string usual = describe({});
  EXPECT_EQ(usual, describe({}));
  EXPECT_NE(usual, describe({.initial_scale = 65536.00000000001}));
  EXPECT_NE(usual, describe({.growth_factor = 2.5}));
  EXPECT_NE(usual, describe({.backoff_factor = 0.25}));
  EXPECT_NE(usual, describe({.growth_interval = 1999}));
  EXPECT_NE(usual, describe({.enabled = false}));
}

}  // namespace
}  // namespace hora::internal
