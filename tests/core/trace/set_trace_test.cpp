// What a timeline shows of process sets and of exchanges, ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/api/results.h"
#include "tests/core/trace/traced_world.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using test::bytes;
using test::floats;
using test::kTimelineRounding;
using test::layout_name;
using test::Timeline;
using test::TracedWorld;
using testing::Contains;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRoundsOfSets = 4;
constexpr std::int64_t kCount = 3000;  // several chunks between nodes

/// Every collective of the row: negotiated, queued and run, one behind the other.
void expect_runs(const Timeline& timeline, const std::string& row, const std::string& operation) {
  const auto spans = timeline.spans(row);
  ASSERT_THAT(spans, SizeIs(3 * kRoundsOfSets)) << row;
  EXPECT_FALSE(test::overlap(spans)) << row;
  for (std::size_t i = 0; i < spans.size(); i += 3) {
    EXPECT_EQ(spans[i].name, "negotiate");
    EXPECT_EQ(spans[i + 1].name, "queue");
    EXPECT_EQ(spans[i + 2].name, operation);
    EXPECT_NEAR(spans[i].end, spans[i + 1].begin, kTimelineRounding);
    EXPECT_NEAR(spans[i + 1].end, spans[i + 2].begin, kTimelineRounding);
  }
}

class SetTrace : public testing::TestWithParam<std::vector<int>> {};

// Both at once, with one name: numbers of units and slots of chunks are the same in both.
TEST_P(SetTrace, ATensorOfASetHasItsRowBesideThatOfTheWorlds) {
  TracedWorld world(GetParam());
  const std::vector<int> members = {0, world.size() - 1};
  world.on_all_ranks(
      [&](int rank) { EXPECT_EQ(world.engine(rank).add_set(members), ProcessSet(1)); });
  world.start();
  world.on_all_ranks([&](int rank) {
    Engine& engine = world.engine(rank);
    const bool member = std::count(members.begin(), members.end(), rank) > 0;
    for (int round = 0; round < kRoundsOfSets; ++round) {
      std::vector<float> of_world(kCount, 1.0F);
      std::vector<float> of_set(kCount, 1.0F);
      const auto first = engine.submit({"x", floats(kCount), bytes(of_world)});
      if (member) engine.submit_and_wait({"x", floats(kCount), bytes(of_set)}, ProcessSet(1));
      engine.wait(*first);
    }
  });
  world.stop();
  for (int rank = 0; rank < world.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Timeline timeline(world.file(rank));
    expect_runs(timeline, "x", "allreduce");
    for (const auto& run : timeline.spans("x", "allreduce")) EXPECT_FALSE(run.args.contains("set"));
    if (std::count(members.begin(), members.end(), rank) == 0) {
      EXPECT_THAT(timeline.spans("x (set 1)"), IsEmpty());
      continue;
    }
    expect_runs(timeline, "x (set 1)", "allreduce");
    for (const auto& run : timeline.spans("x (set 1)", "allreduce")) {
      EXPECT_EQ(run.args.at("set"), 1);
      EXPECT_EQ(run.args.at("bytes"), kCount * 4);
    }
    for (const std::string& row : timeline.rows()) {
      if (!row.starts_with("chunk slot ")) continue;
      EXPECT_FALSE(test::overlap(timeline.spans(row))) << row;
    }
    // Between nodes the first and the last rank have a slice of the set's chunks.
    const bool between_nodes = GetParam().size() > 1;
    EXPECT_THAT(timeline.rows(), Contains("chunk slot 0 (set 1)").Times(between_nodes ? 1 : 0));
  }
}

TEST_P(SetTrace, AnExchangeIsNegotiatedThenQueuedThenRun) {
  TracedWorld world(GetParam());
  world.start();
  world.on_all_ranks([&](int rank) {
    for (int round = 0; round < kRoundsOfSets; ++round) {
      std::vector<float> values(kCount, 1.0F);
      Request request{"x", floats(kAnyExtent), bytes(values)};
      request.signature.kind = OperationKind::allgather;
      request.bytes = kCount * 4;
      request.rows = {kCount};
      const auto result = std::make_shared<HostResult>(world.memory(rank), ResultForm());
      request.result = result;
      request.result_place = result.get();
      world.engine(rank).submit_and_wait(std::move(request));
    }
  });
  world.stop();
  for (int rank = 0; rank < world.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Timeline timeline(world.file(rank));
    expect_runs(timeline, "x", "allgather");
    for (const auto& run : timeline.spans("x", "allgather")) {
      EXPECT_GT(run.end, run.begin);
      EXPECT_EQ(run.args.at("bytes"), kCount * 4);
      EXPECT_FALSE(run.args.contains("op"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, SetTrace,
                         testing::Values(std::vector{3}, std::vector{1, 1}, std::vector{2, 1},
                                         std::vector{2, 2}),
                         layout_name);

}  // namespace
}  // namespace hora::internal
