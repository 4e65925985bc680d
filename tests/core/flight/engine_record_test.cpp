// Records that engines write, ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/flight/flight_recorder.h"
#include "tests/core/engine/engine_fixture.h"

namespace hora::internal {
namespace {

using test::bytes;
using test::floats;
using test::layout_name;
using test::on_all_ranks;
using test::ThreadWorld;
using test::ThreadWorldOptions;
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
  FlightRecord record(int rank) const {
    return read_record(memories_[static_cast<std::size_t>(rank)].layout(), record_now()).value();
  }
  /// Those of this name and set, in the order of submission.
  std::vector<RecordedCollective> collectives(int rank, const std::string& name,
                                              ProcessSet set = kWorld) const {
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

class EngineRecord : public test::EngineFixture {};
INSTANTIATE_TEST_SUITE_P(Layouts, EngineRecord, test::engine_layouts, layout_name);

TEST_P(EngineRecord, HasEachStepOfACollective) {
  RecordedWorld world(options());
  constexpr int kRounds = 3;
  on_all_ranks(*world, [&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values(3000, 1.0F);
      const auto beside = world->engine(rank).submit("b", floats(3000), bytes(values));
      std::vector<float> small(10, 1.0F);
      world->engine(rank).submit_and_wait("a", floats(10, ReduceOp::max), bytes(small));
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
      EXPECT_LE(one.submitted, one.ready);
      // Some ranks have no slice of what travels between nodes.
      if (rank == 0 || one.started.count() > 0) {
        EXPECT_LE(one.ready, one.started);
      }
      EXPECT_LE(one.started, one.done);
      EXPECT_LE(one.ready, one.done);
      of_rank.push_back(one.number);
    }
    if (rank == 0) numbers = of_rank;
    // The same on every rank.
    EXPECT_EQ(of_rank, numbers);
    EXPECT_TRUE(std::is_sorted(of_rank.begin(), of_rank.end()));
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
      const auto submission = world->engine(rank).submit("x", floats(10), bytes(values));
      waiting.fetch_add(1);
      return world->engine(rank).wait(*submission);
    }
    while (waiting.load() < last) std::this_thread::yield();
    for (int i = 0; i < 1000 && world.record(0).blocked == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(world.record(0).blocked, 1);
    ASSERT_THAT(world.collectives(0, "x"), SizeIs(1));
    EXPECT_EQ(world.collectives(0, "x")[0].ready.count(), 0);
    EXPECT_EQ(world.collectives(0, "x")[0].outcome, RecordOutcome::open);
    EXPECT_THAT(world.collectives(last, "x"), SizeIs(0));
    world->engine(rank).submit_and_wait("x", floats(10), bytes(values));
  });
}

TEST(EngineRecordOfSets, CountsTheDecisionsOfEachSet) {
  RecordedWorld world(ThreadWorldOptions{.node_sizes = {2, 1}, .settings = {}});
  on_all_ranks(*world, [&](int rank) {
    Engine& engine = world->engine(rank);
    const ProcessSet set = engine.add_set({0, 2});
    std::vector<float> values(10, 1.0F);
    engine.submit_and_wait(Request{"x", floats(10), bytes(values)});
    if (rank != 1) engine.submit_and_wait(Request{"x", floats(10), bytes(values)}, set);
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
  RecordedWorld world(ThreadWorldOptions{.node_sizes = {2}, .settings = {}});
  std::vector<float> values(10, 1.0F);
  Request request{"x", floats(10), bytes(values)};
  request.timeout = std::chrono::milliseconds(50);
  EXPECT_THROW(world->engine(0).submit_and_wait(std::move(request)), Error);
  const FlightRecord record = world.record(0);
  ASSERT_TRUE(record.cause);
  EXPECT_THAT(record.cause->text, testing::HasSubstr("\"x\""));
  EXPECT_EQ(record.cause->code, static_cast<std::uint32_t>(ErrorCode::timeout) + 1);
  ASSERT_THAT(world.collectives(0, "x"), SizeIs(1));
  EXPECT_EQ(world.collectives(0, "x")[0].outcome, RecordOutcome::failed);
  EXPECT_EQ(world.collectives(0, "x")[0].ready.count(), 0);
}

}  // namespace
}  // namespace hora::internal
