#include "core/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>

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

TEST_P(EngineOnLayouts, MemoryOfTheNodeIsUsedInPlace) {
  ThreadWorld world(options());
  on_all_ranks(world, [&](int rank) {
    const NodeMemory::MemoryBlock block = world.memory(rank).allocate(4000);
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
      auto& own = values[static_cast<std::size_t>(rank)];
      std::fill(own.begin(), own.end(), 1.0F);
      submissions.push_back(world.engine(rank).submit("s", floats(2000), bytes(own)));
    }
    for (int i = 0; i < 1000; ++i) world.progress();
    for (int rank = 0; rank < world.size(); ++rank) {
      ASSERT_TRUE(submissions[static_cast<std::size_t>(rank)]->finished()) << "round " << round;
      world.engine(rank).wait(*submissions[static_cast<std::size_t>(rank)]);
      EXPECT_EQ(values[static_cast<std::size_t>(rank)][1999], static_cast<float>(world.size()));
    }
  }
}

}  // namespace
}  // namespace hora::internal
