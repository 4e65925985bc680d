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

TEST(Broadcast, GivesEveryoneTheRootsBytes) {
  const Context world = init();
  for (const std::int64_t count : {0, 1, 17, 70001}) {
    for (int root = 0; root < world.size(); ++root) {
      std::vector<std::uint8_t> values(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<std::uint8_t>(i + static_cast<std::size_t>(world.rank()));
      }
      broadcast(world, view(values.data(), count), {.name = "b", .root = root});
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], static_cast<std::uint8_t>(i + static_cast<std::size_t>(root)));
      }
    }
  }
  std::uint8_t byte = 0;
  EXPECT_THROW(broadcast(world, view(&byte, 1), {.name = "b", .root = world.size()}), Error);
}

TEST(Barrier, NoRankLeavesBeforeTheLastOneComes) {
  const Context world = init();
  using Clock = std::chrono::steady_clock;  // one clock for all processes of a host
  for (int late = 0; late < world.size(); ++late) {
    if (world.rank() == late) {
      const auto until = Clock::now() + std::chrono::milliseconds(30);
      while (Clock::now() < until) {
      }
    }
    std::int64_t came = Clock::now().time_since_epoch().count();
    barrier(world);
    const std::int64_t left = Clock::now().time_since_epoch().count();
    broadcast(world, view(&came, 1), {.name = "came", .root = late});
    EXPECT_GE(left, came);
  }
}

TEST(Handle, IsWaitedForOnceAndKnowsWhenItIsReady) {
  const Context world = init();
  std::vector<float> values(1000, 1.0F);
  Handle handle = allreduce_async(world, view(values.data(), 1000), {.name = "h"});
  EXPECT_TRUE(handle.valid());
  handle.wait();
  EXPECT_FALSE(handle.valid());
  EXPECT_TRUE(handle.ready());
  EXPECT_THROW(handle.wait(), Error);
  { const Handle dropped = allreduce_async(world, view(values.data(), 1000), {.name = "h"}); }
  EXPECT_EQ(values[999], 1.0F);
}

TEST(Names, ADuplicateInFlightIsThrownWhereItIsSubmitted) {
  const Context world = init();
  std::vector<float> a(10, 1.0F), b(10, 1.0F);
  Handle first = allreduce_async(world, view(a.data(), 10), {.name = "twice"});
  const Error error = test::expect_error(ErrorCode::duplicate_name, [&] {
    const Handle second = allreduce_async(world, view(b.data(), 10), {.name = "twice"});
  });
  EXPECT_EQ(error.tensor(), "twice");
  first.wait();
  EXPECT_EQ(a[0], 1.0F);
  barrier(world);  // no rank shuts down before all have tried
}

/// Rank 0 differs from the rest. The same text everywhere, naming tensor, ranks and both values;
/// the next collective is right.
void expect_mismatch(const Context& world, const TensorView& of_rank_0, const TensorView& of_others,
                     const std::vector<std::string>& words) {
  const bool first = world.rank() == 0;
  std::string text =
      test::expect_error(ErrorCode::mismatch, [&] {
        allreduce(world, first ? of_rank_0 : of_others, {.name = "odd", .op = ReduceOp::sum});
      }).what();
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  std::int64_t length = static_cast<std::int64_t>(text.size());
  broadcast(world, view(&length, 1), {.name = "length"});
  ASSERT_EQ(length, static_cast<std::int64_t>(text.size()));
  EXPECT_TRUE(test::same_everywhere(world, text.data(), text.size()));
  std::vector<float> fine(6, 1.0F);
  allreduce(world, view(fine.data(), 6), {.name = "odd", .op = ReduceOp::sum});
  EXPECT_EQ(fine[5], static_cast<float>(world.size()));
}

TEST(Mismatch, OfTypeShapeAndDimensionsFirstTimeAndFromTheCache) {
  const Context world = init();
  if (world.size() == 1) return;  // no rank to disagree with
  std::vector<float> f(6, 1.0F);
  std::vector<double> d(6, 1.0);
  const std::string others = world.size() == 2 ? "rank 1" : "ranks 1";
  for (int round = 0; round < 3; ++round) {
    expect_mismatch(world, view(f.data(), 6), view(d.data(), 6),
                    {"\"odd\"", "type", "rank 0: ", others, "float32", "float64"});
    expect_mismatch(world, view(f.data(), 6), view(f.data(), 5),
                    {"\"odd\"", "shape", "rank 0: ", others, "[6]", "[5]"});
    expect_mismatch(world, view(f.data(), Shape{2, 3}), view(f.data(), 6),
                    {"\"odd\"", "dimensions", "rank 0: ", others, "[2, 3]", "[6]"});
  }
}

TEST(Mismatch, OfReductionAndRoot) {
  const Context world = init();
  if (world.size() == 1) return;
  float value = 1.0F;
  EXPECT_THROW(
      allreduce(world, view(&value, 1),
                {.name = "op", .op = world.rank() == 0 ? ReduceOp::sum : ReduceOp::average}),
      Error);
  EXPECT_THROW(broadcast(world, view(&value, 1), {.name = "r", .root = world.rank() == 0 ? 0 : 1}),
               Error);
  if (world.rank() == 0) {
    EXPECT_THROW(broadcast(world, view(&value, 1), {.name = "kind"}), Error);
  } else {
    EXPECT_THROW(allreduce(world, view(&value, 1), {.name = "kind"}), Error);
  }
  value = 1.0F;
  allreduce(world, view(&value, 1), {.name = "op", .op = ReduceOp::sum});
  EXPECT_EQ(value, static_cast<float>(world.size()));
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
