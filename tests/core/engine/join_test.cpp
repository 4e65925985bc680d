#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

Signature floats(std::size_t count, ReduceOp op = ReduceOp::sum) {
  Signature signature;
  signature.op = op;
  signature.shape = {static_cast<std::int64_t>(count)};
  return signature;
}

std::vector<float> reduced(Engine& engine, const std::string& name, std::size_t count, float value,
                           ReduceOp op = ReduceOp::sum, ProcessSet set = kWorld) {
  std::vector<float> values(count, value);
  engine.submit_and_wait({name, floats(count, op), reinterpret_cast<std::byte*>(values.data())},
                         set);
  return values;
}

/// What ranks 0 .. size-1 but `absent` make of the values rank + 2.
float expected(ReduceOp op, int size, const std::vector<bool>& absent) {
  float result = op == ReduceOp::min       ? std::numeric_limits<float>::infinity()
                 : op == ReduceOp::max     ? -std::numeric_limits<float>::infinity()
                 : op == ReduceOp::product ? 1.0F
                                           : 0.0F;
  for (int rank = 0; rank < size; ++rank) {
    if (absent[static_cast<std::size_t>(rank)]) continue;
    const auto value = static_cast<float>(rank + 2);
    result = op == ReduceOp::min       ? std::min(result, value)
             : op == ReduceOp::max     ? std::max(result, value)
             : op == ReduceOp::product ? result * value
                                       : result + value;
  }
  return op == ReduceOp::average ? result / static_cast<float>(size) : result;
}

class JoinOnLayouts : public test::OnLayouts {};

// Each rank in turn joins first, while the others reduce: names that are new, and known ones.
TEST_P(JoinOnLayouts, TheOthersReduceWithoutTheOneThatJoinedFirst) {
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                               ReduceOp::product};
  std::vector<std::vector<int>> last(static_cast<std::size_t>(world_.size()));
  on_all_ranks([&](int rank, Engine& engine) {
    const int size = world_.size();
    for (int first = 0; first < size; ++first) {
      std::vector<bool> absent(static_cast<std::size_t>(size));
      absent[static_cast<std::size_t>(first)] = size > 1;
      for (int round = 0; round < 3 && rank != first; ++round) {
        for (const ReduceOp op : kOps) {
          for (const std::size_t count : {std::size_t{1}, std::size_t{1500}}) {
            const std::string name =
                std::string(name_of(op)) + std::to_string(first / 2) + "." + std::to_string(count);
            const auto values = reduced(engine, name, count, static_cast<float>(rank + 2), op);
            const float want = expected(op, size, absent);
            for (const float value : values) ASSERT_FLOAT_EQ(value, want) << name;
          }
        }
      }
      last[static_cast<std::size_t>(rank)].push_back(engine.join(kWorld));
      const auto values = reduced(engine, "after", 7, static_cast<float>(rank + 2));
      const std::vector<bool> none(static_cast<std::size_t>(size));
      ASSERT_EQ(values[6], expected(ReduceOp::sum, size, none));
    }
  });
  for (const auto& ranks : last) EXPECT_EQ(ranks, last.front());
}

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
      const Request request{"b", signature, reinterpret_cast<std::byte*>(values.data())};
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

TEST_P(JoinOnLayouts, WaitsForWhatThisRankHasInFlight) {
  on_all_ranks([&](int rank, Engine& engine) {
    std::vector<float> values(9, static_cast<float>(rank));
    const auto open = engine.submit("x", floats(9), reinterpret_cast<std::byte*>(values.data()));
    engine.join(kWorld);
    engine.wait(*open);
    EXPECT_EQ(values.front(), static_cast<float>(world_.size() * (world_.size() - 1) / 2));
  });
}

TEST_P(JoinOnLayouts, OnAProcessSet) {
  on_all_ranks([&](int rank, Engine& engine) {
    std::vector<int> all;
    for (int r = 0; r < world_.size(); ++r) all.push_back(r);
    const ProcessSet set = engine.add_set(all);
    if (rank != 0) {
      EXPECT_EQ(reduced(engine, "x", 3, 1.0F, ReduceOp::sum, set).front(),
                static_cast<float>(world_.size() - 1));
    }
    engine.join(set);
    EXPECT_EQ(reduced(engine, "x", 3, 1.0F).front(), static_cast<float>(world_.size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, JoinOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{3, 2},
                                         std::vector{1, 2, 1}, std::vector{1, 1, 1, 1, 1}),
                         test::layout_name);

}  // namespace
}  // namespace hora::internal
