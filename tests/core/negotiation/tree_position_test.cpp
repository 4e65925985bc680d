#include <gtest/gtest.h>

#include "core/negotiation/topology.h"

namespace hora::internal {
namespace {

// Node 0 has the children 1, 2, 4; 3 is below 2.
const Topology five_nodes{{{0}, {1, 5}, {2, 8}, {3, 4, 6}, {7}}};

TEST(TreePosition, TheRootRepresentsAllRanks) {
  const TreePosition root(five_nodes, 0);
  EXPECT_TRUE(root.is_root());
  EXPECT_EQ(root.children(), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(root.ranks_in_subtree(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(root.world_size(), 9u);
}

TEST(TreePosition, OthersRepresentTheirNodeAndWhatLiesBelow) {
  const TreePosition inner(five_nodes, 2);
  EXPECT_FALSE(inner.is_root());
  EXPECT_EQ(inner.children(), std::vector<int>{3});
  EXPECT_EQ(inner.local_ranks(), (std::vector<int>{2, 8}));
  EXPECT_EQ(inner.whole_node(), 0b11u);
  EXPECT_EQ(inner.ranks_in_subtree(3), (std::vector<int>{3, 4, 6}));
  EXPECT_EQ(inner.ranks_in_subtree(), (std::vector<int>{2, 3, 4, 6, 8}));
}

}  // namespace
}  // namespace hora::internal
