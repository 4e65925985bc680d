#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bench/harness/timed_loop.h"
#include "tests/bench/sums.h"

namespace bench {
namespace {

constexpr std::size_t count = 3001;

TEST(Values, SumsAreExactAndWrongOnesAreCounted) {
  for (const int ranks : {1, 2, 3, 4, 256}) {
    auto sum = sums(count, ranks, 1000000);
    EXPECT_EQ(count_wrong_sums(sum.data(), count, ranks, 1000000), 0) << ranks << " ranks";
    sum[0] += 1.0F;
    sum[count - 1] = 0.0F;
    EXPECT_EQ(count_wrong_sums(sum.data(), count, ranks, 1000000), 2) << ranks << " ranks";
  }
}

TEST(Values, AResultOfTheRoundBeforeIsWrongEverywhere) {
  const auto sum = sums(count, 2, 6);
  EXPECT_EQ(count_wrong_sums(sum.data(), count, 2, 7), static_cast<std::int64_t>(count));
}

TEST(Values, APartIsLikeTheWhole) {
  std::vector<float> whole(count);
  write_values(whole.data(), count, 3, 9);
  EXPECT_EQ(count_wrong_values(whole.data() + 700, 500, 3, 9, 700), 0);
  EXPECT_EQ(count_wrong_values(whole.data() + 700, 500, 3, 9, 701), 500);
  EXPECT_EQ(count_wrong_values(whole.data() + 700, 500, 2, 9, 700), 500);
  std::vector<float> part(500);
  write_values(part.data(), part.size(), 3, 9, 700);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 700));
  const auto sum = sums(count, 4, 9);
  EXPECT_EQ(count_wrong_sums(sum.data() + 700, 500, 4, 9, 700), 0);
  EXPECT_EQ(count_wrong_sums(sum.data() + 700, 500, 4, 9, 699), 500);
}

}  // namespace
}  // namespace bench
