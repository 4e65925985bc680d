// What an allreduce costs, measured by the ranks that train.
#include "frameworks/torch/optimizer/collective_timing.h"

#include <gtest/gtest.h>
#include <hora/hora.h>

#include <array>
#include <iterator>
#include <vector>

namespace hora::internal::test {
namespace {

void expect_the_same(const Context& world, ProcessSet set) {
  const Peers peers = peers_of(world, set);
  const auto cost = timed_collectives(peers, "timed");
  if (peers.size == 1) {
    EXPECT_FALSE(cost);
  }
  // Of an overloaded machine there is none.
  std::array<double, 3> first{cost ? 1.0 : 0.0, cost ? cost->fixed : 0.0,
                              cost ? cost->per_byte : 0.0};
  const std::array<double, 3> own = first;
  broadcast(world, view(first.data(), std::ssize(first)),
            {.name = "first", .root = peers.first, .process_set = set});
  EXPECT_EQ(own, first);
  if (!cost) return;
  EXPECT_GE(cost->fixed, 0.0);
  EXPECT_GE(cost->per_byte, 0.0);
  EXPECT_GT(cost->fixed + cost->per_byte, 0.0);
}

TEST(CollectiveTiming, GivesAllRanksTheSame) {
  const Context world = init();
  expect_the_same(world, kWorld);
  expect_the_same(world, kWorld);  // names are free again
}

TEST(CollectiveTiming, IsOfAProcessSet) {
  const Context world = init();
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); rank += 2) ranks.push_back(rank);
  const ProcessSet even = add_process_set(world, ranks);
  if (world.rank() % 2 == 0) expect_the_same(world, even);
  barrier(world);
}

}  // namespace
}  // namespace hora::internal::test
