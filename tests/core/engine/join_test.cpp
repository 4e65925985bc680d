// Joining, process sets, and nodes of more ranks than a ready word has bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::expect_error;
using test::floats;
using test::ThreadWorld;
using testing::ContainsRegex;

std::vector<float> reduced(Engine& engine, const std::string& name, std::size_t count, float value,
                           ReduceOp op = ReduceOp::sum, ProcessSet set = kWorld) {
  std::vector<float> values(count, value);
  engine.submit_and_wait({name, floats(static_cast<std::int64_t>(count), op), bytes(values)}, set);
  return values;
}

class JoinOnLayouts : public test::OnLayouts {};

// Uneven numbers of batches, as at the end of an epoch: sums are of the ranks that had data.
TEST_P(JoinOnLayouts, RanksRunOutOfDataOneAfterTheOther) {
  std::mt19937_64 random(test::seed());
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<int> batches;
    for (int rank = 0; rank < world_.size(); ++rank) {
      batches.push_back(static_cast<int>(random() % 12));
    }
    on_all_ranks([&](int rank, Engine& engine) {
      const int own = batches[static_cast<std::size_t>(rank)];
      for (int batch = 0; batch < own; ++batch) {
        float with_data = 0;
        for (const int theirs : batches) with_data += batch < theirs ? 1.0F : 0.0F;
        for (const char* name : {"a", "b"}) {
          const auto values = reduced(engine, name, 300, 1.0F);
          ASSERT_EQ(values.back(), with_data) << "batch " << batch << " on rank " << rank;
        }
      }
      engine.join(kWorld);
    });
  }
}

TEST_P(JoinOnLayouts, OtherCollectivesFailClearlyAndJoinStillAgrees) {
  if (world_.size() < 2) return;  // no other rank is left to submit
  on_all_ranks([&](int rank, Engine& engine) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> values(5, 1.0F);
      Signature signature = floats(5);
      signature.kind = OperationKind::broadcast;
      const Request request{"b", signature, bytes(values)};
      engine.submit_and_wait(Request(request));  // known from then on
      if (rank != world_.size() - 1) {
        for (int again = 0; again < 2; ++again) {
          try {
            engine.submit_and_wait(Request(request));
            FAIL() << "a broadcast went on without rank " << world_.size() - 1 << ", round "
                   << round << ", again " << again << " on rank " << rank;
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::mismatch);
            EXPECT_NE(std::string(error.what())
                          .find("rank " + std::to_string(world_.size() - 1) + " has called join()"),
                      std::string::npos)
                << error.what();
          }
        }
        EXPECT_EQ(reduced(engine, "x", 5, 1.0F).front(), static_cast<float>(world_.size() - 1));
      }
      engine.join(kWorld);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, JoinOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{3, 2},
                                         std::vector{1, 2, 1}, std::vector{1, 1, 1, 1, 1}),
                         test::layout_name);

/// The sum over the set's ranks of (rank + 1) in every element.
void expect_sum(Engine& engine, ProcessSet set, int rank, const std::string& name,
                std::size_t count) {
  std::vector<float> values(count, static_cast<float>(rank + 1));
  engine.submit_and_wait({name, floats(static_cast<std::int64_t>(count)), bytes(values)}, set);
  float expected = 0;
  for (const int member : engine.ranks_of(set)) expected += static_cast<float>(member + 1);
  for (const float value : values) ASSERT_EQ(value, expected) << name << " on rank " << rank;
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

class ProcessSetsOnLayouts : public test::OnLayouts {
 protected:
  std::vector<int> ranks_where(const std::function<bool(int)>& chosen) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (chosen(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
};

// Random overlapping sets, each used by a thread of its own on every rank, in crossed orders.
TEST_P(ProcessSetsOnLayouts, OverlappingSetsAreActiveAtOnce) {
  constexpr int kSets = 4;
  std::mt19937_64 random(test::seed());
  std::vector<std::vector<int>> sets;
  while (sets.size() < kSets) {
    auto ranks = ranks_where([&](int) { return random() % 3 != 0; });
    if (!ranks.empty()) sets.push_back(std::move(ranks));
  }
  on_all_ranks([&](int rank, Engine& engine) {
    std::vector<std::jthread> threads;
    for (const auto& ranks : sets) {
      const ProcessSet set = engine.add_set(ranks);
      EXPECT_EQ(engine.ranks_of(set), ranks);
      if (!contains(ranks, rank)) continue;
      threads.emplace_back([&engine, set, rank] {
        for (int round = 0; round < 30; ++round) {
          expect_sum(engine, set, rank, "a" + std::to_string(round % 3), 1 + 100 * (round % 7));
        }
      });
    }
    for (int round = 0; round < 30; ++round) expect_sum(engine, kWorld, rank, "a", 77);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, ProcessSetsOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{3, 2},
                                         std::vector{1, 2, 1}),
                         test::layout_name);

class ManyLocalRanks : public test::EngineFixture {
 protected:
  /// The sum of `values`, in each of which all are equal.
  static float sum_of(Engine& engine, const std::string& name, std::int64_t count, float value) {
    std::vector<float> values(static_cast<std::size_t>(count), value);
    engine.submit_and_wait(name, floats(count), bytes(values));
    const auto [least, most] = std::ranges::minmax(values);
    EXPECT_EQ(least, most) << name;
    return values.front();
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, ManyLocalRanks,
                         testing::Values(std::vector{33}, std::vector{100}, std::vector{2, 66}),
                         test::layout_name);

TEST_P(ManyLocalRanks, SumNewNamesAndKnownOnes) {
  ThreadWorld world(options());
  test::on_all_ranks(world, [&](int rank) {
    const int n = world.size();
    for (int round = 0; round < 4; ++round) {
      for (const std::int64_t count : {1, 3000, 40'000}) {
        const float sum = sum_of(world.engine(rank), "x" + std::to_string(count), count,
                                 static_cast<float>(rank + round));
        EXPECT_EQ(sum, static_cast<float>(n * (n - 1) / 2 + n * round)) << "on rank " << rank;
      }
    }
  });
}

TEST_P(ManyLocalRanks, JoinOneAfterTheOther) {
  ThreadWorld world(options());
  std::vector<int> batches;
  auto random = test::generator();
  for (int rank = 0; rank < world.size(); ++rank) {
    batches.push_back(static_cast<int>(random() % 4));
  }
  test::on_all_ranks(world, [&](int rank) {
    for (int batch = 0; batch < batches[static_cast<std::size_t>(rank)]; ++batch) {
      const auto with_data = std::ranges::count_if(batches, [=](int all) { return batch < all; });
      EXPECT_EQ(sum_of(world.engine(rank), "a", 300, 1.0F), static_cast<float>(with_data));
    }
    world.engine(rank).join(kWorld);
    EXPECT_EQ(sum_of(world.engine(rank), "a", 300, 1.0F), static_cast<float>(world.size()));
  });
}

TEST_P(ManyLocalRanks, AreNamedWhereTheyLackACollective) {
  ThreadWorld world(options());
  const int last = world.size() - 1;
  test::on_all_ranks(world, [&](int rank) {
    Engine& engine = world.engine(rank);
    EXPECT_EQ(sum_of(engine, "x", 5, 1.0F), static_cast<float>(world.size()));
    if (rank == last) return;
    std::vector<float> values(5, 1.0F);
    Request request{"x", floats(5), bytes(values)};
    request.timeout = 3s;
    const Error error =
        expect_error(ErrorCode::timeout, [&] { engine.submit_and_wait(std::move(request)); });
    // Alone or, where others come as late, behind them.
    EXPECT_THAT(error.what(), ContainsRegex("[ -]" + std::to_string(last) + " did not come"));
  });
}

}  // namespace
}  // namespace hora::internal
