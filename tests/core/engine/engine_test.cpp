#include "core/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <thread>

#include "tests/support/seed.h"
#include "tests/support/threads/thread_world.h"

namespace hora {
namespace {

using test::ThreadWorld;
using test::ThreadWorldOptions;

Signature floats(std::int64_t count, ReduceOp op = ReduceOp::sum) {
  Signature signature;
  signature.op = op;
  signature.shape = {count};
  return signature;
}

std::byte* bytes(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

/// Runs `body(rank)` on a thread for each rank.
void on_all_ranks(ThreadWorld& world, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank); });
  }
}

std::string layout_name(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "nodes";
  for (const int size : info.param) name += "_" + std::to_string(size);
  return name;
}

class EngineOnLayouts : public testing::TestWithParam<std::vector<int>> {
 protected:
  static ThreadWorldOptions options(bool threads = true) {
    ThreadWorldOptions result{.node_sizes = GetParam(), .settings = {}, .engine_threads = threads};
    result.settings.chunk_size = 4096;
    return result;
  }
};

TEST_P(EngineOnLayouts, SumsFirstTimeAndFromTheCache) {
  ThreadWorld world(options());
  on_all_ranks(world, [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      for (const std::int64_t count : {0, 1, 17, 5000}) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(static_cast<std::size_t>(rank + round) + i);
        }
        world.engine(rank).submit_and_wait("x" + std::to_string(count), floats(count),
                                           bytes(values));
        const int n = world.size();
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto expected =
              static_cast<float>(static_cast<std::size_t>(n * (n - 1) / 2 + n * round) +
                                 static_cast<std::size_t>(n) * i);
          ASSERT_EQ(values[i], expected) << "rank " << rank << " count " << count << " at " << i;
        }
      }
    }
  });
}

// In one node each rank sums its slice of such tensors in its own memory, but only where it waits.
TEST_P(EngineOnLayouts, LargeTensorsAreRightForWaitingAndForAsynchronousRanks) {
  ThreadWorld world(options());
  const std::int64_t count = static_cast<std::int64_t>(kAloneBytes / sizeof(float)) + 1 +
                             static_cast<std::int64_t>(test::generator()() % 5000);
  on_all_ranks(world, [&](int rank) {
    Engine& engine = world.engine(rank);
    for (int round = 0; round < 4; ++round) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>((static_cast<std::size_t>(rank + round) + i) % 1000);
      }
      std::vector<float> small(10, 1.0F);
      const auto beside = engine.submit("small", floats(10), bytes(small));
      if ((rank + round) % 2 == 0) {
        engine.submit_and_wait("large", floats(count), bytes(values));
      } else {
        engine.wait(*engine.submit("large", floats(count), bytes(values)));
      }
      engine.wait(*beside);
      EXPECT_EQ(small, std::vector<float>(10, static_cast<float>(world.size())));
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::size_t expected = 0;
        for (int r = 0; r < world.size(); ++r) {
          expected += (static_cast<std::size_t>(r + round) + i) % 1000;
        }
        ASSERT_EQ(values[i], static_cast<float>(expected)) << "rank " << rank << " at " << i;
      }
    }
  });
}

TEST_P(EngineOnLayouts, CrossedOrdersFinishAndAreRight) {
  ThreadWorld world(options());
  const std::uint64_t seed = test::seed();
  on_all_ranks(world, [&](int rank) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(rank));
    constexpr std::size_t kTensors = 24;
    for (int round = 0; round < 40; ++round) {
      std::vector<std::vector<float>> values(kTensors);
      std::vector<std::size_t> order(kTensors);
      for (std::size_t t = 0; t < kTensors; ++t) {
        order[t] = t;
        values[t].assign(1 + t * 37, static_cast<float>(rank + 1) * static_cast<float>(t));
      }
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<Submission>> submissions(kTensors);
      for (const std::size_t t : order) {
        submissions[t] = world.engine(rank).submit(
            "t" + std::to_string(t), floats(static_cast<std::int64_t>(values[t].size())),
            bytes(values[t]));
      }
      std::shuffle(order.begin(), order.end(), random);
      const int n = world.size();
      for (const std::size_t t : order) {
        world.engine(rank).wait(*submissions[t]);
        const float expected = static_cast<float>(n * (n + 1) / 2) * static_cast<float>(t);
        for (const float value : values[t]) ASSERT_EQ(value, expected) << "tensor " << t;
      }
    }
  });
}

TEST_P(EngineOnLayouts, BroadcastsFromEveryRoot) {
  ThreadWorld world(options());
  on_all_ranks(world, [&](int rank) {
    Engine& engine = world.engine(rank);
    for (const std::int64_t count :
         {16, 3001, static_cast<int>(kAloneBytes / sizeof(float)) + 17}) {
      for (int root = 0; root < world.size(); ++root) {
        std::vector<float> values(static_cast<std::size_t>(count), static_cast<float>(rank));
        Signature signature = floats(count);
        signature.kind = OperationKind::broadcast;
        signature.root = root;
        const std::string name = "b" + std::to_string(root) + "." + std::to_string(count);
        if ((rank + root) % 3 == 0) {
          engine.wait(*engine.submit(name, signature, bytes(values)));
        } else {
          engine.submit_and_wait(name, signature, bytes(values));
        }
        for (const float value : values) ASSERT_EQ(value, static_cast<float>(root));
      }
    }
  });
}

TEST_P(EngineOnLayouts, DisagreementIsTheSameErrorEverywhereAndTheNextOneIsRight) {
  if (options().node_sizes == std::vector<int>{1}) return;  // nobody to disagree with
  ThreadWorld world(options());
  std::vector<std::string> texts(static_cast<std::size_t>(world.size()));
  for (int round = 0; round < 3; ++round) {
    on_all_ranks(world, [&](int rank) {
      // Round 0: the name is new; later ones: all but one rank come with the known signature.
      std::vector<float> values(8, 1.0F);
      const bool odd_one = rank == world.size() - 1;
      try {
        world.engine(rank).submit_and_wait("g", floats(odd_one ? 7 : 8), bytes(values));
        ADD_FAILURE() << "no error on rank " << rank;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::mismatch);
        EXPECT_EQ(error.tensor(), "g");
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
      world.engine(rank).submit_and_wait("g", floats(8), bytes(values));
      EXPECT_EQ(values[0], static_cast<float>(world.size()));
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts.front());
    EXPECT_NE(texts.front().find("[7]"), std::string::npos) << texts.front();
    EXPECT_NE(texts.front().find("[8]"), std::string::npos) << texts.front();
    EXPECT_NE(texts.front().find("rank " + std::to_string(world.size() - 1)), std::string::npos);
  }
}

TEST_P(EngineOnLayouts, ANameMayChangeItsShapeOnAllRanks) {
  ThreadWorld world(options());
  on_all_ranks(world, [&](int rank) {
    for (int round = 1; round < 30; ++round) {
      std::vector<float> values(static_cast<std::size_t>(1 + round / 3), 1.0F);
      world.engine(rank).submit_and_wait("g", floats(static_cast<std::int64_t>(values.size())),
                                         bytes(values));
      ASSERT_EQ(values.back(), static_cast<float>(world.size()));
    }
  });
}

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
      std::vector<std::shared_ptr<Submission>> submissions;
      for (const std::size_t t : order) {
        submissions.push_back(
            world.engine(rank).submit("t" + std::to_string(t), floats(3), bytes(values[t])));
      }
      for (const auto& submission : submissions) world.engine(rank).wait(*submission);
      for (const auto& tensor : values) ASSERT_EQ(tensor[2], static_cast<float>(world.size()));
    }
  });
}

TEST_P(EngineOnLayouts, MemoryOfTheNodeIsUsedInPlace) {
  ThreadWorld world(options());
  on_all_ranks(world, [&](int rank) {
    const NodeMemory::Block block = world.memory(rank).allocate(4000);
    auto* values = reinterpret_cast<float*>(block.data);
    for (int round = 0; round < 3; ++round) {
      std::fill(values, values + 1000, 2.0F);
      world.engine(rank).submit_and_wait("inside", floats(999, ReduceOp::average), block.data);
      EXPECT_EQ(values[998], 2.0F);
      EXPECT_EQ(values[999], 2.0F);
    }
    world.memory(rank).release(block.data);
  });
}

TEST_P(EngineOnLayouts, EnginesAlsoRunStepped) {
  ThreadWorld world(options(/*threads=*/false));
  std::vector<std::vector<float>> values(static_cast<std::size_t>(world.size()),
                                         std::vector<float>(2000, 1.0F));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Submission>> submissions;
    for (int rank = 0; rank < world.size(); ++rank) {
      auto& mine = values[static_cast<std::size_t>(rank)];
      std::fill(mine.begin(), mine.end(), 1.0F);
      submissions.push_back(world.engine(rank).submit("s", floats(2000), bytes(mine)));
    }
    for (int i = 0; i < 1000; ++i) world.step();
    for (int rank = 0; rank < world.size(); ++rank) {
      ASSERT_TRUE(submissions[static_cast<std::size_t>(rank)]->finished()) << "round " << round;
      world.engine(rank).wait(*submissions[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(values[static_cast<std::size_t>(rank)][1999], static_cast<float>(world.size()));
    }
  }
}

TEST_P(EngineOnLayouts, DepartureFailsThoseWhoStillWait) {
  ThreadWorld world(options());
  if (world.size() == 1) return;
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(8, 1.0F);
    if (rank != 0) {
      try {
        world.engine(rank).submit_and_wait("never", floats(8), bytes(values));
        ADD_FAILURE() << "rank 0 never submitted this";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::shut_down) << error.what();
      }
    }
    world.engine(rank).depart();
    EXPECT_THROW(world.engine(rank).submit("late", floats(8), bytes(values)), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, EngineOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{3, 1},
                                         std::vector{1, 2, 1}, std::vector{1, 1, 1, 1, 1, 1}),
                         layout_name);

TEST(Engine, ADuplicateNameInFlightIsThrownAtOnce) {
  ThreadWorld world({.node_sizes = {2}, .settings = {}, .engine_threads = true});
  std::vector<float> a(4, 1.0F), b(4, 1.0F);
  const auto first = world.engine(0).submit("twice", floats(4), bytes(a));
  EXPECT_THROW(world.engine(0).submit("twice", floats(4), bytes(b)), Error);
  world.engine(1).submit_and_wait("twice", floats(4), bytes(b));
  world.engine(0).wait(*first);
  EXPECT_EQ(a[0], 2.0F);
}

TEST(Engine, UnnamedSubmissionsGetTheLowestFreeSlot) {
  ThreadWorld world({.node_sizes = {1}, .settings = {}, .engine_threads = true});
  std::vector<float> values(4, 1.0F);
  const auto a = world.engine(0).submit("", floats(4), bytes(values));
  const auto b = world.engine(0).submit("", floats(4), bytes(values));
  EXPECT_EQ(a->name, "hora.unnamed.allreduce.0");
  EXPECT_EQ(b->name, "hora.unnamed.allreduce.1");
  world.engine(0).wait(*a);
  const auto c = world.engine(0).submit("", floats(4), bytes(values));
  EXPECT_EQ(c->name, "hora.unnamed.allreduce.0");
  world.engine(0).wait(*b);
  world.engine(0).wait(*c);
}

TEST(Engine, AnOrphanedSubmissionFreesItsNameWhenItEnds) {
  ThreadWorld world({.node_sizes = {2}, .settings = {}, .engine_threads = true});
  std::vector<float> a(4, 1.0F), b(4, 1.0F);
  auto orphan = world.engine(0).submit("x", floats(4), bytes(a));
  world.engine(0).orphan(orphan);
  world.engine(1).submit_and_wait("x", floats(4), bytes(b));
  EXPECT_EQ(b[0], 2.0F);
  while (!orphan->finished()) std::this_thread::yield();
  EXPECT_EQ(a[0], 1.0F);  // its memory may be gone: nothing is copied out
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(4, 1.0F);
    for (;;) {  // the name comes free a moment after the end
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

}  // namespace
}  // namespace hora
