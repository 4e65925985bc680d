#include <gtest/gtest.h>

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

TEST(Statistics, FlattenKeepsAll) {
  EXPECT_EQ(flatten({{1.0, 2.0}, {}, {3.0}}), (std::vector<double>{1.0, 2.0, 3.0}));
}

}  // namespace
}  // namespace bench
