// Nodes of more ranks than a ready word has bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::expect_error;
using test::floats;
using test::on_all_ranks;
using test::ThreadWorld;
using testing::ContainsRegex;
using testing::HasSubstr;

class ManyLocalRanks : public test::EngineFixture {
 protected:
  /// Of `values` in each of which all are equal.
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
  on_all_ranks(world, [&](int rank) {
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
  on_all_ranks(world, [&](int rank) {
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
  on_all_ranks(world, [&](int rank) {
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
