#include "core/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::bytes;
using test::floats;
using test::on_all_ranks;
using test::ThreadWorld;
using test::ThreadWorldOptions;

class EngineOnLayouts : public test::EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineOnLayouts, test::engine_layouts, test::layout_name);

TEST_P(EngineOnLayouts, MoreNamesThanIdsStillWork) {
  ThreadWorldOptions few = options();
  few.settings.id_capacity = 16;
  ThreadWorld world(few);
  const std::uint64_t seed = test::seed();
  on_all_ranks(world, [&](int rank) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(rank));
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<float>> values(50, std::vector<float>(3, 1.0F));
      std::vector<std::size_t> order(values.size());
      for (std::size_t t = 0; t < order.size(); ++t) order[t] = t;
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Operation>> submissions;
      for (const std::size_t t : order) {
        submissions.push_back(
            world.engine(rank).submit("t" + std::to_string(t), floats(3), bytes(values[t])));
      }
      for (const auto& submission : submissions) world.engine(rank).wait(*submission);
      for (const auto& tensor : values) ASSERT_EQ(tensor[2], static_cast<float>(world.size()));
    }
  });
}

TEST(Engine, AnOrphanedSubmissionFreesItsNameWhenItEnds) {
  ThreadWorld world({.node_sizes = {2}, .settings = {}, .engine_threads = true});
  std::vector<float> a(4, 1.0F), b(4, 1.0F);
  auto orphan = world.engine(0).submit("x", floats(4), bytes(a));
  world.engine(0).detach(orphan);
  world.engine(1).submit_and_wait("x", floats(4), bytes(b));
  EXPECT_EQ(b[0], 2.0F);
  while (!orphan->finished()) std::this_thread::yield();
  EXPECT_EQ(a[0], 1.0F);  // its memory may be gone: nothing is copied out
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(4, 1.0F);
    for (;;) {  // the name becomes free a moment after the end
      try {
        world.engine(rank).submit_and_wait("x", floats(4), bytes(values));
        break;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::duplicate_name);
      }
    }
    EXPECT_EQ(values[0], 2.0F);
  });
}

/// The engine reads this rank's slice of a large tensor where the caller has it, until the handle
/// is dropped.
void expect_that_an_orphan_leaves_memory_alone(std::vector<int> node_sizes) {
  ThreadWorld world({.node_sizes = std::move(node_sizes), .settings = {}, .engine_threads = true});
  constexpr std::int64_t kCount = 1 << 19;
  std::vector<float> b(kCount);
  for (const bool is_known : {false, true}) {
    auto a = std::make_unique<std::vector<float>>(kCount, 1.0F);
    std::fill(b.begin(), b.end(), 2.0F);
    std::shared_ptr<Operation> orphan;
    while (!orphan) {  // the name of the round before becomes free a moment after its end
      try {
        orphan = world.engine(0).submit("x", floats(kCount), bytes(*a));
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::duplicate_name);
      }
    }
    world.engine(0).detach(orphan);
    std::fill(a->begin(), a->end(), 100.0F);
    world.engine(1).submit_and_wait("x", floats(kCount), bytes(b));
    EXPECT_EQ(b, std::vector<float>(kCount, 3.0F)) << is_known;
    while (!orphan->finished()) std::this_thread::yield();
    EXPECT_EQ(*a, std::vector<float>(kCount, 100.0F)) << is_known;
  }
}

TEST(Engine, AnOrphanedSubmissionLeavesTheCallersMemoryAlone) {
  expect_that_an_orphan_leaves_memory_alone({2});
}
TEST(Engine, AnOrphanedSubmissionAloneOnItsNodeDoesSo) {
  expect_that_an_orphan_leaves_memory_alone({1, 1});
}

/// The handle is dropped before, while and after messages between the nodes use the memory.
TEST(Engine, AnOrphanWhoseMemoryIsInMessagesIsWaitedFor) {
  std::mt19937_64 random = test::generator();
  Settings settings;
  settings.chunk_size = std::size_t{64} << 10;
  ThreadWorld world({.node_sizes = {1, 1}, .settings = settings, .engine_threads = true});
  constexpr std::int64_t kCount = 1 << 19;
  for (int round = 0; round < 30; ++round) {
    const std::string name = std::to_string(round);
    const auto pause = std::chrono::microseconds(random() % 3000);
    on_all_ranks(world, [&](int rank) {
      Engine& engine = world.engine(rank);
      std::vector<float> values(kCount, 1.0F + static_cast<float>(rank));
      if (rank == 1) {
        engine.submit_and_wait(name, floats(kCount), bytes(values));
        EXPECT_EQ(values, std::vector<float>(kCount, 3.0F)) << "round " << round;
        return;
      }
      const auto orphan = engine.submit(name, floats(kCount), bytes(values));
      std::this_thread::sleep_for(pause);
      engine.detach(orphan);
      std::fill(values.begin(), values.end(), 100.0F);
      while (!orphan->finished()) std::this_thread::yield();
      EXPECT_EQ(values, std::vector<float>(kCount, 100.0F)) << "round " << round;
    });
  }
}

}  // namespace
}  // namespace hora::internal
