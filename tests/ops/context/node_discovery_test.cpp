#include "ops/context/node_discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/base/process.h"
#include "tests/support/seed.h"
#include "tests/support/threads/thread_bootstrap.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Reach = std::vector<std::vector<bool>>;

Reach all_reach(std::size_t count) {
  return Reach(count, std::vector<bool>(count, true));
}

TEST(GroupByReach, OneGroupWhereAllReachAll) {
  EXPECT_EQ(group_by_reach(all_reach(1)), std::vector<int>{0});
  EXPECT_EQ(group_by_reach(all_reach(4)), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_TRUE(group_by_reach({}).empty());
}

TEST(GroupByReach, OneDirectionIsNotEnough) {
  Reach reach = all_reach(3);
  reach[0][2] = false;
  EXPECT_EQ(group_by_reach(reach), (std::vector<int>{0, 0, 2}));
  reach = all_reach(3);
  reach[2][0] = false;
  EXPECT_EQ(group_by_reach(reach), (std::vector<int>{0, 0, 2}));
}

TEST(GroupByReach, ARankThatReachesNoOtherStandsAlone) {
  Reach reach = all_reach(4);
  for (std::size_t i = 0; i < 4; ++i) reach[1][i] = i == 1;
  EXPECT_EQ(group_by_reach(reach), (std::vector<int>{0, 1, 0, 0}));
}

TEST(GroupByReach, TwoNamespacesOnOneHost) {
  Reach reach(6, std::vector<bool>(6, false));
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t j = 0; j < 6; ++j) reach[i][j] = i % 2 == j % 2;
  }
  EXPECT_EQ(group_by_reach(reach), (std::vector<int>{0, 1, 0, 1, 0, 1}));
}

TEST(GroupByReach, AllMembersMustBeReachedNotJustTheFirst) {
  Reach reach = all_reach(3);
  reach[1][2] = false;
  EXPECT_EQ(group_by_reach(reach), (std::vector<int>{0, 0, 2}));
}

TEST(SeparationText, NamesTheGroupsAndTheReason) {
  EXPECT_EQ(separation_text({0, 0, 0}, {4, 5, 6}, {"", "", ""}), "");
  EXPECT_THAT(separation_text({0, 0, 2, 0}, {4, 5, 6, 7}, {"", "", "no such process", ""}),
              AllOf(HasSubstr("ranks 4, 5, 7 | 6 are separate nodes"),
                    HasSubstr("rank 6 says: no such process")));
}

TEST(GroupByReach, GroupsOfRandomReachAreMutualAndGreedy) {
  auto random = test::generator();
  for (int round = 0; round < 500; ++round) {
    const std::size_t count = 1 + random() % 9;
    Reach reach = all_reach(count);
    for (auto& row : reach) {
      for (std::size_t j = 0; j < count; ++j) row[j] = random() % 4 != 0;
    }
    const auto mutual = [&](std::size_t i, std::size_t j) { return reach[i][j] && reach[j][i]; };
    const auto group = group_by_reach(reach);
    ASSERT_EQ(group.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = static_cast<std::size_t>(group[i]);
      ASSERT_LE(first, i);
      ASSERT_EQ(group[first], group[i]) << "named after its first member";
      for (std::size_t j = 0; j < i; ++j) {
        if (group[j] == group[i]) {
          ASSERT_TRUE(mutual(i, j)) << i << " and " << j << " share no memory";
        }
      }
      // No earlier group would have taken it.
      for (std::size_t other = 0; other < first; ++other) {
        if (group[other] != static_cast<int>(other)) continue;
        bool fits = true;
        for (std::size_t j = other; j < i; ++j) {
          if (group[j] == static_cast<int>(other)) fits = fits && mutual(i, j);
        }
        ASSERT_FALSE(fits) << i << " would fit into group " << other;
      }
    }
  }
}

using Ranks = std::vector<std::vector<int>>;

TEST(DiscoverNodes, RanksOfAHostAreANodeAndMapEachOther) {
  test::run_ranks({7, 3, 7, 7, 3}, [](Bootstrap& world) {
    const NodeDiscovery node = discover_nodes(world, 0);
    EXPECT_EQ(node.topology.ranks_of_node, (Ranks{{0, 2, 3}, {1, 4}}));
    const int own = node.topology.node_of(world.rank());
    const int local = node.topology.local_rank_of(world.rank());
    EXPECT_EQ(node.host_rank, local);
    EXPECT_EQ(node.host_size, own == 0 ? 3 : 2);
    EXPECT_GT(node.smallest_memory, 0U);
    EXPECT_EQ(node.over_sockets, active_rdma_ports().empty());

    const NodeMemory::MemoryBlock block = node.memory->allocate(64);
    block.data[0] = static_cast<std::byte>(10 + world.rank());
    const auto places = world.all_gather(std::as_bytes(std::span(&block.location, 1)));
    for (const int peer : node.topology.ranks_of_node[static_cast<std::size_t>(own)]) {
      Location place;
      std::memcpy(&place, places[static_cast<std::size_t>(peer)].data(), sizeof place);
      const std::byte* const seen =
          node.memory->address(node.topology.local_rank_of(peer), place, 64);
      EXPECT_EQ(seen[0], static_cast<std::byte>(10 + peer));
    }
    world.barrier();  // before memory is unmapped
  });
}

TEST(DiscoverNodes, HostsAreCutIntoVirtualNodes) {
  test::run_ranks({0, 0, 0, 1, 1}, [](Bootstrap& world) {
    const NodeDiscovery node = discover_nodes(world, 2);
    EXPECT_EQ(node.topology.ranks_of_node, (Ranks{{0, 1}, {2}, {3, 4}}));
    EXPECT_EQ(node.host_size, world.rank() < 3 ? 3 : 2);
    EXPECT_EQ(node.host_rank, world.rank() % 3);
    world.barrier();
  });
}

TEST(DiscoverNodes, NodesOfOneHostNeedNoSockets) {
  test::run_ranks({5, 5, 5}, [](Bootstrap& world) {
    const NodeDiscovery node = discover_nodes(world, 1);
    EXPECT_EQ(node.topology.nodes(), 3);
    EXPECT_FALSE(node.over_sockets);
    world.barrier();
  });
}

}  // namespace
}  // namespace hora::internal
