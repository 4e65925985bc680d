// Records that engines write, ranks as threads.
#include "core/flight/flight_recorder.h"
#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using namespace test;
using testing::HasSubstr;
using testing::SizeIs;

/// A world of which each rank's record can be read.
class RecordedWorld {
 public:
  explicit RecordedWorld(ThreadWorldOptions options) {
    for (const int size : options.node_sizes) {
      for (int i = 0; i < size; ++i) {
        memories_.push_back(RecordMemory::create().value());
        recorders_.push_back(std::make_unique<FlightRecorder>(memories_.back().path().c_str()));
      }
    }
    options.flight = [this](int rank) { return recorders_[static_cast<std::size_t>(rank)].get(); };
    world_ = std::make_unique<ThreadWorld>(options);
  }
  ThreadWorld& operator*() { return *world_; }
  ThreadWorld* operator->() { return world_.get(); }
  RecordLayout& layout(int rank) { return memories_[static_cast<std::size_t>(rank)].layout(); }
  FlightRecord record(int rank) { return read_record(layout(rank), record_now()).value(); }
  /// Those of this name and set, in the order of submission.
  std::vector<RecordedCollective> collectives(int rank, const std::string& name,
                                              ProcessSet set = kWorld) {
    auto found = record(rank).collectives;
    std::erase_if(found, [&](const RecordedCollective& one) {
      return one.name != name || one.set != set.number();
    });
    return found;
  }

 private:
  std::vector<RecordMemory> memories_;
  std::vector<std::unique_ptr<FlightRecorder>> recorders_;
  std::unique_ptr<ThreadWorld> world_;
};

class EngineRecord : public EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineRecord, engine_layouts, layout_name);

TEST_P(EngineRecord, HasEachStepOfACollective) {
  RecordedWorld world(options());
  constexpr int kRounds = 3;
  on_all_ranks(*world, [&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values(3000, 1.0F), small(10, 1.0F);
      const auto beside = world->engine(rank).submit(sum_of(values, "b"));
      world->engine(rank).submit_and_wait({"a", floats(10, ReduceOp::max), bytes(small)});
      world->engine(rank).wait(*beside);
    }
  });
  std::vector<std::uint64_t> numbers;
  for (int rank = 0; rank < world->size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const auto collectives = world.collectives(rank, "a");
    ASSERT_THAT(collectives, SizeIs(kRounds));
    std::vector<std::uint64_t> of_rank;
    for (const RecordedCollective& one : collectives) {
      EXPECT_EQ(one.kind, OperationKind::allreduce);
      EXPECT_EQ(one.op, ReduceOp::max);
      EXPECT_EQ(one.bytes, 40u);
      EXPECT_EQ(one.peers, static_cast<std::uint32_t>(world->size()));
      EXPECT_EQ(one.outcome, RecordOutcome::done);
      EXPECT_GT(one.submitted.count(), 0);
      // Some ranks have no slice of what travels between nodes.
      const bool starts = rank == 0 || one.started.count() > 0;
      const std::vector times = {one.submitted, one.ready, starts ? one.started : one.ready,
                                 std::max(one.started, one.done), one.done};
      EXPECT_TRUE(std::ranges::is_sorted(times)) << testing::PrintToString(times);
      of_rank.push_back(one.number);
    }
    if (rank == 0) numbers = of_rank;
    // The same on every rank.
    EXPECT_EQ(of_rank, numbers);
    EXPECT_TRUE(std::ranges::is_sorted(of_rank));
    EXPECT_GT(of_rank.front(), 0u);
    EXPECT_LE(of_rank.back(), 2u * kRounds);
    const FlightRecord record = world.record(rank);
    EXPECT_EQ(record.blocked, 0);
    EXPECT_GE(record.last_activity, collectives.back().done);
  }
}

TEST_P(EngineRecord, ShowsWhatWaitsAndForHowMany) {
  if (GetParam() == std::vector{1}) GTEST_SKIP() << "one rank waits for nobody";
  RecordedWorld world(options());
  const int last = world->size() - 1;
  std::atomic<int> waiting{0};
  on_all_ranks(*world, [&](int rank) {
    std::vector<float> values(10, 1.0F);
    if (rank != last) {
      const auto submission = world->engine(rank).submit(sum_of(values, "x"));
      waiting.fetch_add(1);
      return world->engine(rank).wait(*submission);
    }
    while (waiting.load() < last) std::this_thread::yield();
    for (int i = 0; i < 1000 && world.record(0).blocked == 0; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(world.record(0).blocked, 1);
    ASSERT_THAT(world.collectives(0, "x"), SizeIs(1));
    EXPECT_EQ(world.collectives(0, "x")[0].ready.count(), 0);
    EXPECT_EQ(world.collectives(0, "x")[0].outcome, RecordOutcome::open);
    EXPECT_THAT(world.collectives(last, "x"), SizeIs(0));
    world->engine(rank).submit_and_wait(sum_of(values, "x"));
  });
}

TEST(EngineRecordOfSets, CountsTheDecisionsOfEachSet) {
  RecordedWorld world({.node_sizes = {2, 1}, .settings = {}});
  on_all_ranks(*world, [&](int rank) {
    Engine& engine = world->engine(rank);
    const ProcessSet set = engine.sets().add({0, 2});
    summed(engine, "x");
    if (rank != 1) summed(engine, "x", 8, 1.0F, set);
  });
  for (const int rank : {0, 2}) {
    const auto of_set = world.collectives(rank, "x", ProcessSet(1));
    ASSERT_THAT(of_set, SizeIs(1));
    EXPECT_EQ(of_set[0].number, 1u);
    EXPECT_EQ(of_set[0].peers, 2u);
    // After the set's own making.
    EXPECT_EQ(world.collectives(rank, "x")[0].number, 2u);
  }
}

TEST(EngineRecordOfFailures, HasTheCauseAndWhatFailed) {
  RecordedWorld world({.node_sizes = {2}, .settings = {}});
  std::vector<float> values(10, 1.0F);
  EXPECT_THROW(world->engine(0).submit_and_wait(sum_of(values, "x", 50ms)), Error);
  const FlightRecord record = world.record(0);
  ASSERT_TRUE(record.cause);
  EXPECT_THAT(record.cause->text, HasSubstr("\"x\""));
  EXPECT_EQ(record.cause->code, static_cast<std::uint32_t>(ErrorCode::timeout) + 1);
  ASSERT_THAT(world.collectives(0, "x"), SizeIs(1));
  EXPECT_EQ(world.collectives(0, "x")[0].outcome, RecordOutcome::failed);
  EXPECT_EQ(world.collectives(0, "x")[0].ready.count(), 0);
}

class ArrivalsOnLayouts : public EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, ArrivalsOnLayouts,
                         testing::Values(std::vector{3}, std::vector{1, 1, 1}, std::vector{2, 2},
                                         std::vector{1, 2, 1}),
                         layout_name);

/// As under `horarun --watch`.
TEST_P(ArrivalsOnLayouts, AreCountedByPhaseAndLeftWhereTheyAreWatched) {
  constexpr int kRounds = 40;
  RecordedWorld world(options());
  RecordArrivals& arrivals = world.layout(0).arrivals;
  arrivals.wanted.store(1);
  const int late = world->size() - 1;
  on_all_ranks(*world, [&](int rank) {
    for (int i = 0; i < kRounds; ++i) {
      if (rank == late) std::this_thread::sleep_for(20ms);
      for (const char* name : {"hora.gradients.0.0", "loss"}) summed(world->engine(rank), name);
    }
  });
  for (int rank = 0; rank < world->size(); ++rank) world->engine(rank).stop();
  EXPECT_THAT(world->engine(0).arrivals_text(),
              testing::AllOf(HasSubstr("    input and forward: "), HasSubstr("    training: ")));
  const auto seen = read_arrivals(arrivals);
  ASSERT_TRUE(seen);
  // It is written twice a second.
  EXPECT_GE(seen->decisions, 30u);
  EXPECT_NEAR(static_cast<double>(seen->steps), static_cast<double>(seen->decisions) / 2, 1);
  ASSERT_EQ(seen->rows.size(), static_cast<std::size_t>(world->size()));
  const auto row = std::ranges::find(seen->rows, late, &RankArrivals::rank);
  ASSERT_NE(row, seen->rows.end());
  // Half of the collectives are those for which it is late.
  EXPECT_GE(static_cast<double>(row->last), 0.3 * static_cast<double>(seen->decisions));
  EXPECT_GT(row->p99, 10ms);
  EXPECT_EQ(row->phase, kForwardPhase);
}

TEST(ArrivalsThatAreOff, AreNotCounted) {
  FlightRecorder recorder("off");
  ThreadWorld world({.node_sizes = {2}, .settings = {}, .flight = [&](int) { return &recorder; }});
  on_all_ranks(world, [&](int rank) {
    for (int i = 0; i < 5; ++i) summed(world.engine(rank), "g");
  });
  for (int rank = 0; rank < world.size(); ++rank) world.engine(rank).stop();
  EXPECT_EQ(world.engine(0).arrivals_text(), "");
}

}  // namespace
}  // namespace hora::internal
