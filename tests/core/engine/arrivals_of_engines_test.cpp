// Who came last, seen through whole engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/flight/flight_recorder.h"
#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::bytes;
using test::floats;
using test::on_all_ranks;
using test::ThreadWorld;
using testing::HasSubstr;
using testing::IsEmpty;

class ArrivalsOnLayouts : public test::EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, ArrivalsOnLayouts,
                         testing::Values(std::vector{3}, std::vector{1, 1, 1}, std::vector{2, 2},
                                         std::vector{1, 2, 1}),
                         test::layout_name);

/// Rank 0's record, as under `horarun --watch`.
TEST_P(ArrivalsOnLayouts, AreCountedByPhaseAndLeftWhereTheyAreWatched) {
  constexpr int kRounds = 40;
  const RecordMemory memory = RecordMemory::create().value();
  memory.layout().arrivals.wanted.store(1);
  FlightRecorder recorder(memory.path().c_str());
  test::ThreadWorldOptions with_record = options();
  with_record.flight = [&](int rank) { return rank == 0 ? &recorder : nullptr; };
  ThreadWorld world(with_record);
  const int late = world.size() - 1;
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(8, 1.0F);
    for (int i = 0; i < kRounds; ++i) {
      if (rank == late) std::this_thread::sleep_for(20ms);
      world.engine(rank).submit_and_wait("hora.gradients.0.0", floats(8), bytes(values));
      world.engine(rank).submit_and_wait("loss", floats(8), bytes(values));
    }
  });
  for (int rank = 0; rank < world.size(); ++rank) world.engine(rank).stop();
  const std::string text = world.engine(0).arrivals_text();
  EXPECT_THAT(text, HasSubstr("    input and forward: "));
  EXPECT_THAT(text, HasSubstr("    training: "));
  const auto seen = read_arrivals(memory.layout().arrivals);
  ASSERT_TRUE(seen);
  // It is written twice a second.
  EXPECT_GE(seen->decisions, 30u);
  EXPECT_NEAR(static_cast<double>(seen->steps), static_cast<double>(seen->decisions) / 2, 1);
  ASSERT_EQ(seen->rows.size(), static_cast<std::size_t>(world.size()));
  const auto row = std::ranges::find(seen->rows, late, &RankArrivals::rank);
  ASSERT_NE(row, seen->rows.end());
  // Half of the collectives are those for which it is late.
  EXPECT_GE(static_cast<double>(row->last), 0.3 * static_cast<double>(seen->decisions));
  EXPECT_GT(row->p99, 10ms);
  EXPECT_EQ(row->phase, kForwardPhase);
}

TEST(ArrivalsThatAreOff, AreNotCounted) {
  FlightRecorder recorder("off");
  test::ThreadWorldOptions options;
  options.node_sizes = {2};
  options.flight = [&](int) { return &recorder; };
  ThreadWorld world(options);
  on_all_ranks(world, [&](int rank) {
    std::vector<float> values(8, 1.0F);
    for (int i = 0; i < 5; ++i) world.engine(rank).submit_and_wait("g", floats(8), bytes(values));
  });
  for (int rank = 0; rank < world.size(); ++rank) world.engine(rank).stop();
  EXPECT_THAT(world.engine(0).arrivals_text(), IsEmpty());
}

}  // namespace
}  // namespace hora::internal
