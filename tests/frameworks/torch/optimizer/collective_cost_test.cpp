#include "frameworks/torch/optimizer/collective_cost.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

constexpr CollectiveCost kLink{.fixed = 2e-4, .per_byte = 8e-9};  // 1 Gbit/s

std::vector<TimedCollective> measured(const CollectiveCost& cost) {
  std::vector<TimedCollective> result;
  std::size_t bytes = least_timed_bytes;
  for (std::size_t i = 0; i < timed_sizes; ++i, bytes *= timed_growth) {
    result.push_back({bytes, cost.seconds(bytes)});
  }
  return result;
}

TEST(CollectiveCost, IsTheLineThroughWhatWasMeasured) {
  const auto cost = fitted_cost(measured(kLink));
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->fixed, kLink.fixed, 1e-9);
  EXPECT_NEAR(cost->per_byte, kLink.per_byte, 1e-14);
  EXPECT_DOUBLE_EQ((CollectiveCost{1.0, 0.5}.seconds(4)), 3.0);
}

TEST(CollectiveCost, NeedsTwoSizes) {
  EXPECT_FALSE(fitted_cost({}));
  const std::vector<TimedCollective> one{{1024, 0.1}, {1024, 0.2}};
  EXPECT_FALSE(fitted_cost(one));
  EXPECT_TRUE(fitted_cost(std::vector<TimedCollective>{{1024, 0.1}, {2048, 0.2}}));
}

TEST(CollectiveCost, IsNeverBelowZero) {
  const auto falling = fitted_cost(std::vector<TimedCollective>{{1024, 0.2}, {2048, 0.1}});
  EXPECT_EQ(falling->per_byte, 0.0);
  EXPECT_GT(falling->fixed, 0.0);
  const auto steep = fitted_cost(std::vector<TimedCollective>{{1024, 0.1}, {2048, 1.0}});
  EXPECT_GT(steep->per_byte, 0.0);
  EXPECT_EQ(steep->fixed, 0.0);
}

TEST(CollectiveCost, HardlyFollowsAnOutlier) {
  auto times = measured(kLink);
  times.push_back({std::size_t{1} << 20, kLink.seconds(std::size_t{1} << 20)});
  times[1].seconds *= 10;
  const auto cost = fitted_cost(times);
  EXPECT_NEAR(cost->per_byte, kLink.per_byte, 0.1 * kLink.per_byte);
}

TEST(CollectiveCost, IsFoundUnderNoise) {
  std::mt19937_64 engine(test::seed());
  std::uniform_real_distribution<double> longer(1.0, 1.1);
  for (int i = 0; i < 1000; ++i) {
    auto times = measured(kLink);
    for (TimedCollective& one : times) one.seconds *= longer(engine);
    const auto cost = fitted_cost(times);
    EXPECT_NEAR(cost->per_byte, kLink.per_byte, 0.12 * kLink.per_byte);
    EXPECT_LT(cost->fixed, 3 * kLink.fixed);
  }
}

TEST(RepetitionsOf, FitIntoTheLimit) {
  EXPECT_EQ(repetitions_of(0.0), most_repetitions);
  EXPECT_EQ(repetitions_of(timing_limit / 100), most_repetitions);
  EXPECT_EQ(repetitions_of(0.4 * timing_limit), 2);
  EXPECT_EQ(repetitions_of(0.9 * timing_limit), 1);
  EXPECT_EQ(repetitions_of(1.1 * timing_limit), 0);
  EXPECT_EQ(repetitions_of(1e300), 0);
}

}  // namespace
}  // namespace hora::internal
