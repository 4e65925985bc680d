#include "bench/harness/comparison.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/golden.h"

namespace bench {
namespace {

const std::vector<Bar> bars{{"hora_bucket", "vs_mpi", {"mpi", "mpi_out_of_place"}, 0.8, 64 * kib},
                            {"hora", "vs_mpi", {"mpi"}, 1.5, 1 * mib},
                            {"hora_bucket", "vs_mpi", {"mpi"}, 3.0, 1 * mib, 4 * mib}};

Blocks took(double seconds) {
  return {{seconds}, {seconds}};
}

TEST(Comparison, TheFasterPeerCounts) {
  const auto ratios = ratios_of(
      bars, {{"hora_bucket", took(1.0)}, {"mpi", took(4.0)}, {"mpi_out_of_place", took(3.5)}});
  EXPECT_EQ(ratios, (Ratios{{"hora_bucket vs_mpi", 3.5}}));
  EXPECT_EQ(ratios_of_contender(ratios, "hora_bucket"), (Ratios{{"vs_mpi", 3.5}}));
  EXPECT_EQ(ratios_of_contender(ratios, "hora"), Ratios{});
}

// Several bars of one ratio share a column.
TEST(Comparison, MarksWhatIsBelowItsBarWhereTheBarHolds) {
  const auto table = [](double ratio, bool judge) {
    std::map<std::size_t, Ratios> by_size;
    for (const std::size_t bytes : {64 * kib - 1, 64 * kib, 1 * mib, 5 * mib}) {
      by_size[bytes] = {{"hora_bucket vs_mpi", ratio}};
    }
    return table_of_ratios("op", bars, by_size, judge);
  };
  hora::internal::test::expect_golden(
      "bench/harness/comparison.txt", "tables",
      table(0.79, true) + table(0.80, true) + table(2.9, true) + table(0.79, false));
}

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

// Le Boudec's table A.1: of so many values the interval is from the first to the second in order;
// of fewer than 6 it is their whole range.
TEST(Statistics, TheMediansIntervalIsThatOfTheTable) {
  const int rows[][3] = {{1, 1, 1}, {2, 1, 2},   {3, 1, 3},   {6, 1, 6},    {8, 1, 8},
                         {9, 2, 8}, {12, 3, 10}, {20, 6, 15}, {30, 10, 21}, {70, 27, 44}};
  for (const auto& [size, low, high] : rows) {
    std::vector<double> values;
    for (int i = size; i > 0; --i) values.push_back(i);
    const Interval interval = median_interval(values);
    EXPECT_EQ(interval.low, low) << size << " values";
    EXPECT_EQ(interval.high, high) << size << " values";
    EXPECT_EQ(interval.median, (size + 1) / 2.0) << size << " values";
  }
}

TEST(Statistics, FlattenKeepsAll) {
  EXPECT_EQ(flatten({{1.0, 2.0}, {}, {3.0}}), (std::vector<double>{1.0, 2.0, 3.0}));
}

}  // namespace
}  // namespace bench
