#include "core/negotiation/joined_ranks.h"

#include <gtest/gtest.h>

namespace hora::internal {
namespace {

// Node 0 has the children 1, 2; 3 is below 2.
const TreePosition root_of_four_nodes({{{0, 5}, {1}, {2}, {3, 4}}}, 0);

TEST(JoinedRanks, ALocalRankIsABit) {
  JoinedRanks joined;
  EXPECT_EQ(joined.of_node(root_of_four_nodes), 0u);
  joined.add({5});
  joined.add({1});
  EXPECT_EQ(joined.of_node(root_of_four_nodes), 0b10u);
  joined.add({0});
  EXPECT_EQ(joined.of_node(root_of_four_nodes), root_of_four_nodes.whole_node());
}

TEST(JoinedRanks, AChildIsPresentOnceItsWholeSubtreeHasJoined) {
  JoinedRanks joined;
  EXPECT_FALSE(joined.all_below(1, root_of_four_nodes));
  joined.add({2, 3});
  EXPECT_FALSE(joined.all_below(2, root_of_four_nodes)) << "rank 4 is below node 2, too";
  joined.add({4});
  EXPECT_TRUE(joined.all_below(2, root_of_four_nodes));
  EXPECT_FALSE(joined.all_below(1, root_of_four_nodes));
}

TEST(JoinedRanks, KnowsTheLastUntilAllHaveJoinedAndBeyond) {
  JoinedRanks joined;
  EXPECT_TRUE(joined.empty());
  joined.add({3, 0});
  joined.add({2, 1});
  EXPECT_EQ(joined.size(), 4u);
  EXPECT_TRUE(joined.contains(2));
  EXPECT_FALSE(joined.contains(4));
  EXPECT_EQ(joined.last(), 1);
  joined.clear();
  EXPECT_TRUE(joined.empty());
  EXPECT_EQ(joined.last(), 1);
}

}  // namespace
}  // namespace hora::internal
