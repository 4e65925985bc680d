#include <gtest/gtest.h>
#include <hora/hora.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>

#include "tests/ops/context/world.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(Context, KnowsWhereThisRankStands) {
  const Context world = init();
  int members = 0;
  for (int node = 0; node < world.cross_size(); ++node) {
    members += static_cast<int>(world.ranks_of_node(node).size());
  }
  EXPECT_EQ(members, world.size());
  const auto& own = world.ranks_of_node(world.cross_rank());
  EXPECT_EQ(own.size(), static_cast<std::size_t>(world.local_size()));
  EXPECT_EQ(own[static_cast<std::size_t>(world.local_rank())], world.rank());
  EXPECT_THROW((void)world.ranks_of_node(world.cross_size()), Error);
  const char* given = std::getenv("HORA_RANKS_PER_NODE");
  EXPECT_EQ(world.settings().ranks_per_node, given == nullptr ? 0 : std::atoi(given));
  const int limit = world.settings().ranks_per_node;
  EXPECT_EQ(world.cross_size(), limit == 0 ? 1 : (world.size() + limit - 1) / limit);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST(Context, StartsAndStopsManyTimesInOneProcess) {
  std::size_t before = 0;
  for (int round = 0; round < 100; ++round) {
    Context world = init();
    float value = 1.0F;
    allreduce(world, view(&value, 1), {.name = "x", .op = ReduceOp::sum});
    ASSERT_EQ(value, static_cast<float>(world.size()));
    EXPECT_THROW((void)init(), Error) << "hora runs already";
    world.shutdown();
    EXPECT_THROW(allreduce(world, view(&value, 1)), Error);
    if (round == 1) before = open_descriptors();
  }
  EXPECT_LE(open_descriptors(), before);
}

/// Every rank submits and waits in an order of its own.
TEST(Orders, TenThousandRandomAndCrossedOnesFinishAndAreRight) {
  const Context world = init();
  std::mt19937_64 random(test::seed() * 1000 + static_cast<std::uint64_t>(world.rank()));
  constexpr std::size_t kTensors = 6;
  constexpr int kOrders = 10000;
  std::vector<std::vector<std::int32_t>> values(kTensors);
  std::vector<Handle> handles(kTensors);
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const int n = world.size();
  for (int round = 0; round < kOrders; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t t : order) {
      values[t].assign(1 + t * 50, (world.rank() + 1) * static_cast<int>(t + 1) + round);
      handles[t] = allreduce_async(
          world, view(values[t].data(), static_cast<std::int64_t>(values[t].size())),
          {.name = "t" + std::to_string(t), .op = ReduceOp::sum});
    }
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t t : order) {
      handles[t].wait();
      const int expected = n * (n + 1) / 2 * static_cast<int>(t + 1) + n * round;
      ASSERT_EQ(values[t].front(), expected) << "round " << round << " tensor " << t;
      ASSERT_EQ(values[t].back(), expected) << "round " << round << " tensor " << t;
    }
  }
}

}  // namespace
}  // namespace hora::internal
