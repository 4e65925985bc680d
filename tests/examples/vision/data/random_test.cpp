#include "examples/vision/data/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/support/seed.h"

namespace vision {
namespace {

TEST(Random, RepeatsAndDependsOnEveryPartOfTheKey) {
  const std::uint64_t seed = hora::internal::test::seed();
  EXPECT_EQ(Random({seed, 1, 2}).next(), Random({seed, 1, 2}).next());
  EXPECT_NE(Random({seed, 1, 2}).next(), Random({seed, 2, 1}).next());
  EXPECT_NE(Random({seed, 1, 2}).next(), Random({seed, 1, 3}).next());
  EXPECT_NE(Random({seed, 1, 2}).next(), Random({seed + 1, 1, 2}).next());
}

TEST(Random, BelowIsUniform) {
  Random random{hora::internal::test::seed()};
  constexpr int draws = 90'000;
  std::array<int, 9> seen{};
  for (int i = 0; i < draws; ++i) {
    const std::uint64_t value = random.below(seen.size());
    ASSERT_LT(value, seen.size());
    ++seen[value];
  }
  // 10,000 each; the deviation of a count is 94, and six of them are 566.
  const auto [fewest, most] = std::minmax_element(seen.begin(), seen.end());
  EXPECT_GT(*fewest, 10'000 - 566);
  EXPECT_LT(*most, 10'000 + 566);
}

TEST(Random, BelowTakesTheEndsOfItsRange) {
  Random random{hora::internal::test::seed()};
  EXPECT_EQ(random.below(1), 0U);
  constexpr std::uint64_t large = (std::uint64_t{1} << 63U) + 1;
  for (int i = 0; i < 100; ++i) {
    EXPECT_LT(random.below(large), large);
  }
}

TEST(Random, UniformFillsItsInterval) {
  Random random{hora::internal::test::seed()};
  double sum = 0;
  constexpr int draws = 40'000;
  for (int i = 0; i < draws; ++i) {
    const double value = random.uniform(-2, 6);
    ASSERT_GE(value, -2);
    ASSERT_LT(value, 6);
    sum += value;
  }
  // The deviation of the mean is 8 / sqrt(12 * draws) = 0.0115; six of them.
  EXPECT_NEAR(sum / draws, 2, 0.07);
  EXPECT_EQ(random.uniform(3, 3), 3);
}

}  // namespace
}  // namespace vision
