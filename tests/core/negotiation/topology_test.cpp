#include "core/negotiation/topology.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <set>

#include "core/messages/messages.h"
#include "tests/support/golden.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(Signature, CountsBytes) {
  EXPECT_EQ((Signature{.type = DataType::float16, .shape = {3, 4}}.bytes()), 24u);
  EXPECT_EQ((Signature{.type = DataType::float64}.bytes()), 8u);
  EXPECT_EQ((Signature{.shape = {5, 0}}.bytes()), 0u);
  EXPECT_EQ((Signature{.kind = OperationKind::barrier}.bytes()), 0u);
  const Signature negative{.shape = {-2}};
  EXPECT_THROW(negative.bytes(), Error);
}

TEST(Signature, SaysWhatItIs) {
  std::string texts;
  for (const Signature& signature : {Signature{.op = ReduceOp::average, .shape = {3, 4}},
                                     {.kind = OperationKind::broadcast,
                                     .type = DataType::bfloat16,
                                     .device = DeviceKind::cuda,
                                     .root = 2,
                                     .shape = {7}},
                                     {.type = DataType::int64, .prescale = 0.5},
                                     {.kind = OperationKind::barrier}}) {
    texts += to_string(signature) + "\n";
  }
  for (int kind = 0; kind <= static_cast<int>(last_of<OperationKind>) + 1; ++kind) {
    texts.append(name_of(static_cast<OperationKind>(kind))).append("\n");
  }
  test::expect_golden("core/negotiation/texts.txt", "signatures", texts);
}

TEST(Signature, RunsOnADeviceWhereNcclCanAndExchangesWhereOneGroupHasAllRanks) {
  using enum OperationKind;
  const auto on_gpu = [](OperationKind kind, DataType type = DataType::float32,
                         ReduceOp op = ReduceOp::sum, bool one_group = true) {
    return runs_on_device({.kind = kind, .type = type, .op = op, .device = DeviceKind::cuda},
                          one_group);
  };
  EXPECT_FALSE(runs_on_device(Signature{}, true)) << "host memory";
  for (const OperationKind kind : {allreduce, broadcast, allgather, alltoall, reduce_scatter}) {
    const bool reduces = kind == allreduce || kind == reduce_scatter;
    EXPECT_TRUE(on_gpu(kind));
    EXPECT_EQ(on_gpu(kind, DataType::float32, ReduceOp::sum, false),
              kind == allreduce || kind == broadcast);
    EXPECT_EQ(on_gpu(kind, DataType::int16), !reduces);
    EXPECT_EQ(on_gpu(kind, DataType::uint16), !reduces);
    EXPECT_TRUE(on_gpu(kind, DataType::uint32));
    EXPECT_EQ(on_gpu(kind, DataType::float32, ReduceOp::adasum), !reduces);
  }
}

using Nodes = std::vector<std::vector<int>>;

TEST(MakeTopology, OrdersGroupsByTheirLowestRankAndCutsThem) {
  EXPECT_EQ(make_topology({7, 7, 7, 2}, 0).ranks_of_node, (Nodes{{0, 1, 2}, {3}}));
  EXPECT_EQ(make_topology({0, 1, 0, 1, 1}, 0).ranks_of_node, (Nodes{{0, 2}, {1, 3, 4}}));
  EXPECT_EQ(make_topology({9, 5, 5, 9}, 0).ranks_of_node, (Nodes{{0, 3}, {1, 2}}));
  EXPECT_EQ(make_topology({0, 1, 0, 1, 0, 1}, 2).ranks_of_node, (Nodes{{0, 2}, {1, 3}, {4}, {5}}));
  EXPECT_EQ(make_topology({0, 0, 0}, 8).ranks_of_node, (Nodes{{0, 1, 2}}));
}

TEST(MakeTopology, EveryRankHasOnePlace) {
  auto random = test::generator();
  for (int round = 0; round < 300; ++round) {
    std::vector<int> group_of_rank(1 + random() % 40);
    for (int& group : group_of_rank) group = static_cast<int>(random() % 6);
    const std::size_t limit = random() % 5;
    const Topology topology = make_topology(group_of_rank, static_cast<int>(limit));
    const Nodes& nodes = topology.ranks_of_node;
    ASSERT_EQ(topology.size(), static_cast<int>(group_of_rank.size()));
    const auto smallest = std::ranges::min(nodes, {}, &std::vector<int>::size).size();
    ASSERT_EQ(topology.smallest_node(), static_cast<int>(smallest));
    for (const auto& ranks : nodes) {
      ASSERT_TRUE(limit == 0 || ranks.size() <= limit);
      for (const int rank : ranks) {
        ASSERT_EQ(group_of_rank[static_cast<std::size_t>(rank)],
                  group_of_rank[static_cast<std::size_t>(ranks.front())]);
      }
    }
    for (int rank = 0; rank < topology.size(); ++rank) {
      const auto& of_node = nodes.at(static_cast<std::size_t>(topology.node_of(rank)));
      ASSERT_EQ(of_node.at(static_cast<std::size_t>(topology.local_rank_of(rank))), rank);
    }
    ASSERT_TRUE(std::ranges::is_sorted(nodes));
  }
}

TEST(Topology, KnowsThePlaceOfEachRank) {
  const Topology topology{{{0, 5}, {2, 3}, {7}}};
  for (const auto& [rank, index] : {std::pair(0, 0), {3, 2}, {7, 4}}) {
    EXPECT_EQ(topology.index_of(rank), index);
  }
  for (const int rank : {-1, 1, 1000}) {
    EXPECT_EQ(topology.node_of(rank), -1);
    EXPECT_EQ(topology.local_rank_of(rank), -1);
  }
}

TEST(Tree, ParentsChildrenAndSubtreesAgreeAndEveryNodeIsNearTheRoot) {
  for (const int radix : {2, 3, 4, 11, 64}) {
    for (int nodes = 1; nodes <= 130; ++nodes) {
      int most_hops = 0;
      for (int reached = 1; reached < nodes; reached *= radix) ++most_hops;
      ASSERT_EQ(tree_parent(0, radix), -1);
      ASSERT_EQ(tree_subtree(0, nodes, radix).size(), static_cast<std::size_t>(nodes));
      for (int node = 0; node < nodes; ++node) {
        std::multiset<int> subtree = {node};
        std::size_t largest = static_cast<std::size_t>(nodes);
        for (const int child : tree_children(node, nodes, radix)) {
          ASSERT_LT(child, nodes);
          ASSERT_EQ(tree_parent(child, radix), node);
          const std::vector<int> below = tree_subtree(child, nodes, radix);
          // But for a subtree that the last node cuts off.
          if (below.back() != nodes - 1) {
            ASSERT_LE(below.size(), largest);
            largest = below.size();
          }
          subtree.insert(below.begin(), below.end());
        }
        ASSERT_EQ(tree_subtree(node, nodes, radix),
                  std::vector<int>(subtree.begin(), subtree.end()));
        int hops = 0;
        for (int at = node; at != 0; at = tree_parent(at, radix)) ++hops;
        ASSERT_LE(hops, most_hops) << "node " << node << " of " << nodes;
      }
    }
  }
}

TEST(Tree, RadixGrowsWithAHopsCost) {
  EXPECT_EQ(tree_radix(1, kSocketHop), 2);
  EXPECT_EQ(tree_radix(2, kSocketHop), 2);
  for (const int nodes : {4, 8, 12}) {  // the linear tree
    EXPECT_EQ(tree_children(0, nodes, tree_radix(nodes, kSocketHop)).size(), nodes - 1U);
  }
  EXPECT_EQ(tree_radix(1000, 0), 2);
  for (const int nodes : {128, 1250, 12500}) {
    const int radix = tree_radix(nodes, kSocketHop);
    EXPECT_GT(radix, tree_radix(nodes, kRdmaHop));
    EXPECT_LT(tree_children(0, nodes, radix).size(), 33U);
  }
}

// Node 0 has the children 1, 2, 4; 3 is below 2.
const Topology tree_of_five{{{0}, {1, 5}, {2, 8}, {3, 4, 6}, {7}}};

TEST(TreePosition, RepresentsANodeAndWhatLiesBelow) {
  const TreePosition root(tree_of_five, 0);
  EXPECT_TRUE(root.is_root());
  EXPECT_EQ(root.children(), (std::vector<int>{4, 2, 1}));
  EXPECT_EQ(root.ranks_in_subtree(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  const TreePosition inner(tree_of_five, 2);
  EXPECT_FALSE(inner.is_root());
  EXPECT_EQ(inner.local_ranks(), (std::vector<int>{2, 8}));
  EXPECT_EQ(inner.whole_node(), 0b11u);
  EXPECT_EQ(inner.ranks_in_subtree(3), (std::vector<int>{3, 4, 6}));
  EXPECT_EQ(inner.ranks_in_subtree(), (std::vector<int>{2, 3, 4, 6, 8}));
}

}  // namespace
}  // namespace hora::internal
