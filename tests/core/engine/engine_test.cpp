#include "core/engine/engine.h"

#include <numeric>

#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using namespace test;

class EngineOnLayouts : public EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineOnLayouts, engine_layouts, layout_name);

TEST_P(EngineOnLayouts, MoreNamesThanIdsStillWork) {
  ThreadWorldOptions few = options();
  few.settings.id_capacity = 16;
  ThreadWorld world(few);
  on_all_ranks(world, [&, seed = seed()](int rank) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(rank));
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<float>> values(50, std::vector<float>(3, 1.0F));
      std::vector<std::size_t> order(values.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Operation>> submissions;
      for (const std::size_t t : order) {
        submissions.push_back(
            world.engine(rank).submit(sum_of(values[t], "t" + std::to_string(t))));
      }
      for (const auto& submission : submissions) world.engine(rank).wait(*submission);
      for (const auto& tensor : values) ASSERT_EQ(tensor[2], static_cast<float>(world.size()));
    }
  });
}

/// The name of a collective becomes free a moment after its end.
void once_free(const std::function<void()>& submit) {
  for (;;) {
    try {
      return submit();
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::duplicate_name);
    }
  }
}

// Nothing is copied out, for the memory may be gone; of a large tensor the engine reads this rank's
// slice where the caller has it, until the handle is dropped.
TEST(Engine, AnOrphanedSubmissionLeavesTheCallersMemoryAloneAndFreesItsNameWhenItEnds) {
  for (const std::vector<int>& node_sizes : {std::vector{2}, {1, 1}}) {
    ThreadWorld world({.node_sizes = node_sizes, .settings = {}});
    for (const std::size_t count : {std::size_t{4}, std::size_t{1} << 19}) {
      for (const bool is_known : {false, true}) {
        SCOPED_TRACE(is_known);
        const std::string name = std::to_string(count);
        std::vector<float> a(count, 1.0F);
        std::shared_ptr<Operation> orphan;
        once_free([&] { orphan = world.engine(0).submit(sum_of(a, name)); });
        world.engine(0).detach(orphan);
        std::ranges::fill(a, 100.0F);
        once_free([&] { EXPECT_EQ(summed(world.engine(1), name, count, 2.0F), 3.0F); });
        while (!orphan->finished()) std::this_thread::yield();
        EXPECT_EQ(a, std::vector<float>(count, 100.0F));
      }
    }
  }
}

/// The handle is dropped before, while and after messages between the nodes use the memory.
TEST(Engine, AnOrphanWhoseMemoryIsInMessagesIsWaitedFor) {
  std::mt19937_64 random = generator();
  ThreadWorldOptions options{.node_sizes = {1, 1}, .settings = {}};
  options.settings.chunk_size = std::size_t{64} << 10;
  ThreadWorld world(options);
  constexpr std::size_t kCount = 1 << 19;
  for (int round = 0; round < 30; ++round) {
    const std::string name = std::to_string(round);
    const auto pause = std::chrono::microseconds(random() % 3000);
    on_all_ranks(world, [&](int rank) {
      Engine& engine = world.engine(rank);
      if (rank == 1) {
        EXPECT_EQ(summed(engine, name, kCount, 2.0F), 3.0F) << "round " << round;
        return;
      }
      std::vector<float> values(kCount, 1.0F);
      const auto orphan = engine.submit(sum_of(values, name));
      std::this_thread::sleep_for(pause);
      engine.detach(orphan);
      std::ranges::fill(values, 100.0F);
      while (!orphan->finished()) std::this_thread::yield();
      EXPECT_EQ(values, std::vector<float>(kCount, 100.0F)) << "round " << round;
    });
  }
}

/// Nodes of more ranks than a ready word has bits, and a tree of three levels.
class ManyRanks : public EngineFixture {
 protected:
  ThreadWorld world_{options()};
  const float size_ = static_cast<float>(world_.size());
};
INSTANTIATE_TEST_SUITE_P(Layouts, ManyRanks,
                         testing::Values(std::vector{33}, std::vector{100}, std::vector{2, 66},
                                         std::vector{1, 2, 1, 1, 1}),
                         layout_name);

TEST_P(ManyRanks, SumNewNamesAndKnownOnes) {
  on_all_ranks(world_, [&](int rank) {
    for (int round = 0; round < 4; ++round) {
      for (const std::size_t count : {1, 3000, 40'000}) {
        const float sum = summed(world_.engine(rank), "x" + std::to_string(count), count,
                                 static_cast<float>(rank + round));
        EXPECT_EQ(sum, size_ * (size_ - 1) / 2 + size_ * static_cast<float>(round)) << rank;
      }
    }
  });
}

TEST_P(ManyRanks, JoinOneAfterTheOther) {
  std::vector<int> batches(static_cast<std::size_t>(world_.size()));
  std::ranges::generate(batches, [random = generator()]() mutable { return random() % 4; });
  on_all_ranks(world_, [&](int rank) {
    for (int batch = 0; batch < batches[static_cast<std::size_t>(rank)]; ++batch) {
      const auto with_data = std::ranges::count_if(batches, [=](int all) { return batch < all; });
      EXPECT_EQ(summed(world_.engine(rank), "a", 300), static_cast<float>(with_data));
    }
    world_.engine(rank).join(kWorld);
    EXPECT_EQ(summed(world_.engine(rank), "a", 300), size_);
  });
}

TEST_P(ManyRanks, AreNamedWhereTheyLackACollective) {
  const int last = world_.size() - 1;
  on_all_ranks(world_, [&](int rank) {
    EXPECT_EQ(summed(world_.engine(rank), "x", 5), size_);
    if (rank == last) return;
    std::vector<float> values(5, 1.0F);
    // Alone or, where others come as late, behind them.
    expect_error(ErrorCode::timeout,
                 testing::ContainsRegex("[ -]" + std::to_string(last) + " did not come"),
                 [&] { world_.engine(rank).submit_and_wait(sum_of(values, "x", 3s)); });
  });
}

}  // namespace
}  // namespace hora::internal
