#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bench/harness/comparison.h"

namespace bench {
namespace {

TEST(Statistics, QuantilesInterpolateBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(quantile({3.0}, 0.99), 3.0);
  EXPECT_DOUBLE_EQ(quantile({3.0, 1.0, 2.0}, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(quantile({4.0, 1.0, 2.0, 3.0}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({0.0, 10.0}, 0.99), 9.9);
  EXPECT_DOUBLE_EQ(quantile({2.0, 1.0}, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(quantile({2.0, 1.0}, 1.0), 2.0);
}

TEST(Statistics, RatioOfBlocksOutlivesASlowSpell) {
  // Twice as slow throughout; the machine is ten times slower during the last block of three.
  const Blocks slow{{2.0, 2.0}, {2.0, 9.0, 2.0}, {20.0}};
  const Blocks fast{{1.0}, {1.0}, {10.0}};
  EXPECT_DOUBLE_EQ(ratio_of_blocks(slow, fast), 2.0);
}

// Le Boudec's table A.1: of so many values the interval is from the first to the second in order.
TEST(Statistics, TheMediansIntervalIsThatOfTheTable) {
  struct Row {
    int count;
    int low;
    int high;
  };
  for (const Row row : {Row{6, 1, 6}, Row{8, 1, 8}, Row{9, 2, 8}, Row{12, 3, 10}, Row{20, 6, 15},
                        Row{30, 10, 21}, Row{70, 27, 44}}) {
    std::vector<double> values;
    for (int i = row.count; i > 0; --i) values.push_back(i);
    const Interval interval = median_interval(values);
    EXPECT_EQ(interval.low, row.low) << row.count << " values";
    EXPECT_EQ(interval.high, row.high) << row.count << " values";
    EXPECT_EQ(interval.median, (row.count + 1) / 2.0) << row.count << " values";
  }
}

TEST(Statistics, FewValuesHaveTheirWholeRangeAsInterval) {
  for (const std::vector<double>& values :
       {std::vector<double>{5.0}, {5.0, 1.0}, {3.0, 1.0, 5.0}}) {
    const Interval interval = median_interval(values);
    EXPECT_EQ(interval.low, *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(interval.high, 5.0);
  }
}

TEST(Statistics, FlattenKeepsAll) {
  EXPECT_EQ(flatten({{1.0, 2.0}, {}, {3.0}}), (std::vector<double>{1.0, 2.0, 3.0}));
}

}  // namespace
}  // namespace bench
