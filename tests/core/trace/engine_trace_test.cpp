/// What a timeline shows of real engines and pipelines, process sets and exchanges, ranks as
/// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/api/results.h"
#include "core/trace/trace.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/threads/thread_world.h"
#include "tests/support/timeline.h"

namespace hora::internal::test {

inline Signature floats(std::int64_t count) {
  Signature signature;
  signature.shape = {count};
  return signature;
}

inline std::byte* bytes(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

inline std::string layout_name(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "nodes";
  for (const int size : info.param) name += "_" + std::to_string(size);
  return name;
}

/// Ranks with a trace each.
class TracedWorld {
 public:
  explicit TracedWorld(std::vector<int> node_sizes, bool engine_threads = true) {
    const int size = std::accumulate(node_sizes.begin(), node_sizes.end(), 0);
    for (int rank = 0; rank < size; ++rank) traces_.push_back(std::make_unique<Trace>());
    ThreadWorldOptions options{.node_sizes = std::move(node_sizes),
                               .settings = {},
                               .engine_threads = engine_threads,
                               .trace = [this](int rank) { return Tracer(&trace(rank)); }};
    options.settings.chunk_size = 4096;
    world_ = std::make_unique<ThreadWorld>(options);
  }
  int size() const { return world_->size(); }
  Engine& engine(int rank) { return world_->engine(rank); }
  NodeMemory& memory(int rank) { return world_->memory(rank); }
  Trace& trace(int rank) { return *traces_[static_cast<std::size_t>(rank)]; }
  std::string file(int rank) const { return folder_.file(std::to_string(rank) + ".json"); }
  void start() {
    for (int rank = 0; rank < size(); ++rank) trace(rank).start(file(rank), {rank, size(), 0, "h"});
  }
  void stop() {
    for (int rank = 0; rank < size(); ++rank) trace(rank).stop();
  }
  void on_all_ranks(const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<Trace>> traces_;
  std::unique_ptr<ThreadWorld> world_;
};

}  // namespace hora::internal::test

namespace hora::internal {
namespace {

using test::bytes;
using test::floats;
using test::kTimelineRounding;
using test::layout_name;
using test::Timeline;
using test::TimelineSpan;
using test::TracedWorld;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kRounds = 5;
const std::map<std::string, std::int64_t> kTensors = {{"a", 17}, {"b", 5000}, {"empty", 0}};

void train(TracedWorld& world) {
  world.on_all_ranks([&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      std::map<std::string, std::vector<float>> values;
      std::vector<std::shared_ptr<Operation>> submissions;
      for (const auto& [name, count] : kTensors) {
        values[name].assign(static_cast<std::size_t>(count), 1.0F);
        submissions.push_back(
            world.engine(rank).submit(name, floats(count), bytes(values.at(name))));
      }
      for (const auto& submission : submissions) world.engine(rank).wait(*submission);
    }
  });
}

class EngineTrace : public testing::TestWithParam<std::vector<int>> {};

TEST_P(EngineTrace, EachTensorIsNegotiatedThenQueuedThenRun) {
  TracedWorld world(GetParam());
  world.start();
  train(world);
  world.stop();
  for (int rank = 0; rank < world.size(); ++rank) {
    const Timeline timeline(world.file(rank));
    EXPECT_EQ(timeline.pid(), rank);
    EXPECT_EQ(timeline.dropped(), 0u);
    for (const auto& [name, count] : kTensors) {
      const auto spans = timeline.spans(name);
      ASSERT_THAT(spans, SizeIs(3 * kRounds)) << name << " on rank " << rank;
      EXPECT_FALSE(test::overlap(spans));
      for (std::size_t i = 0; i < spans.size(); i += 3) {
        EXPECT_EQ(spans[i].name, "negotiate");
        EXPECT_EQ(spans[i + 1].name, "queue");
        EXPECT_EQ(spans[i + 2].name, "allreduce");
        EXPECT_NEAR(spans[i].end, spans[i + 1].begin, kTimelineRounding);
        EXPECT_NEAR(spans[i + 1].end, spans[i + 2].begin, kTimelineRounding);
        const auto& args = spans[i + 2].args;
        EXPECT_EQ(args.at("bytes"), count * 4);
        EXPECT_EQ(args.at("type"), "float32");
        EXPECT_EQ(args.at("op"), "sum");
        EXPECT_EQ(args.at("unit"), spans[i + 1].args.at("unit"));
        EXPECT_GE(args.at("unit_tensors"), 1);
        EXPECT_GE(args.at("unit_bytes"), args.at("bytes"));
      }
    }
  }
}

TEST_P(EngineTrace, TheFirstNegotiationIsReportedLaterOnesAreReadyBits) {
  TracedWorld world(GetParam());
  world.start();
  train(world);
  world.stop();
  for (int rank = 0; rank < world.size(); ++rank) {
    const Timeline timeline(world.file(rank));
    const auto negotiations = timeline.spans("a", "negotiate");
    const auto marks = timeline.marks("a");
    ASSERT_THAT(negotiations, SizeIs(kRounds));
    ASSERT_FALSE(marks.empty());
    EXPECT_EQ(marks.front().name, "reported");
    EXPECT_THAT(timeline.marks("a", "ready"), SizeIs(kRounds - 1));
    for (const TimelineSpan& mark : marks) {
      EXPECT_GE(mark.begin, negotiations.front().begin);
      EXPECT_LE(mark.begin, negotiations.back().end);
    }
  }
}

// Of several nodes the root alone knows.
TEST_P(EngineTrace, NegotiationsSayWhoCameLast) {
  using namespace std::chrono_literals;
  TracedWorld world(GetParam());
  const int late = world.size() - 1;
  world.start();
  world.on_all_ranks([&](int rank) {
    std::vector<float> values(8, 1.0F);
    for (int round = 0; round < kRounds; ++round) {
      if (rank == late) std::this_thread::sleep_for(20ms);
      world.engine(rank).submit_and_wait("x", floats(8), bytes(values));
    }
  });
  world.stop();
  for (int rank = 0; rank < world.size(); ++rank) {
    const bool knows = world.size() > 1 && (GetParam().size() == 1 || rank == 0);
    const auto spans = Timeline(world.file(rank)).spans("x", "negotiate");
    ASSERT_THAT(spans, SizeIs(kRounds));
    int named = 0;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      // The first time negotiates the name.
      ASSERT_EQ(spans[i].args.contains("last_rank"), knows && i > 0) << "rank " << rank;
      if (!knows || i == 0) continue;
      EXPECT_GE(spans[i].args.at("late_us"), 0);
      named += spans[i].args.at("last_rank") == late && spans[i].args.at("late_us") > 1000 ? 1 : 0;
    }
    // On a busy machine another one may be late by more.
    EXPECT_EQ(named > 0, knows) << "rank " << rank;
  }
}

/// Slots of chunks between nodes; ranks beyond the smallest node's size have none.
TEST_P(EngineTrace, ChunksPassTheirStagesInsideTheirUnitsRun) {
  TracedWorld world(GetParam());
  world.start();
  train(world);
  world.stop();
  const auto& sizes = GetParam();
  const int slices = *std::min_element(sizes.begin(), sizes.end());
  int rank = 0;
  for (const int size : sizes) {
    for (int local = 0; local < size; ++local, ++rank) {
      const Timeline timeline(world.file(rank));
      std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<TimelineSpan>> chunks;
      for (const std::string& row : timeline.rows()) {
        if (!row.starts_with("chunk slot ")) continue;
        EXPECT_FALSE(test::overlap(timeline.spans(row)));
        for (const TimelineSpan& span : timeline.spans(row)) {
          chunks[{span.args.at("unit"), span.args.at("offset")}].push_back(span);
        }
      }
      const bool has_slice = sizes.size() > 1 && local < slices;
      EXPECT_EQ(has_slice, !chunks.empty()) << "rank " << rank;
      std::map<std::uint64_t, std::uint64_t> chunks_of_unit;
      for (const auto& [key, stages] : chunks) {
        ASSERT_THAT(stages, SizeIs(3));
        EXPECT_EQ(stages[0].name, "local_in");
        EXPECT_EQ(stages[1].name, "cross");
        EXPECT_EQ(stages[2].name, "local_out");
        EXPECT_TRUE(kTensors.contains(stages[0].args.at("tensor"))) << stages[0].args;
        ++chunks_of_unit[key.first];
      }
      for (const TimelineSpan& run : timeline.spans("b", "allreduce")) {
        const std::uint64_t unit = run.args.at("unit");
        const std::uint64_t expected =
            has_slice ? run.args.at("unit_chunks").get<std::uint64_t>() : 0;
        EXPECT_EQ(chunks_of_unit[unit], expected);
        for (const auto& [key, stages] : chunks) {
          if (key.first != unit) continue;
          EXPECT_GE(stages.front().begin + kTimelineRounding, run.begin);
          EXPECT_LE(stages.back().end, run.end + kTimelineRounding);
        }
      }
    }
  }
}

TEST_P(EngineTrace, CanBeSwitchedWhileCollectivesRun) {
  TracedWorld world(GetParam());
  std::atomic<bool> ending{false};
  std::jthread training([&] {
    world.on_all_ranks([&](int rank) {
      // All ranks end in the same round: rank 0 decides when.
      for (std::vector<float> values{0.0F}; values[0] == 0.0F;) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));  // so that files stay short
        values[0] = rank == 0 && ending ? 1.0F : 0.0F;
        world.engine(rank).submit_and_wait("x", floats(1), bytes(values));
      }
    });
  });
  for (int round = 0; round < 6; ++round) {
    world.start();
    // In every other round at least one operation begins and ends inside.
    const bool waits = round % 2 == 1;
    const std::uint64_t before = world.engine(0).statistics().operations;
    while (waits && world.engine(0).statistics().operations < before + 2) std::this_thread::yield();
    world.stop();
    for (int rank = 0; rank < world.size(); ++rank) {
      EXPECT_FALSE(test::overlap(Timeline(world.file(rank)).spans("x")));
    }
    EXPECT_GE(Timeline(world.file(0)).spans("x", "allreduce").size(), waits ? 1u : 0u);
  }
  ending = true;
}

INSTANTIATE_TEST_SUITE_P(Layouts, EngineTrace,
                         testing::Values(std::vector{1}, std::vector{3}, std::vector{1, 1},
                                         std::vector{2, 2}, std::vector{2, 1}),
                         layout_name);

// Without an engine thread only wait() itself makes progress, so it is sure to be blocked.
TEST(EngineTraceWait, ShowsTheTimeThatAThreadIsBlocked) {
  TracedWorld world({1}, /*engine_threads=*/false);
  world.start();
  std::vector<float> values{1.0F};
  const auto submission = world.engine(0).submit("x", floats(1), bytes(values));
  const double submitted = static_cast<double>(trace_now().count()) / 1000.0;
  world.engine(0).wait(*submission);
  world.engine(0).submit_and_wait("y", floats(1), bytes(values));
  world.stop();
  const Timeline timeline(world.file(0));
  const auto waits = timeline.spans("main thread", "wait");
  ASSERT_THAT(waits, SizeIs(2));
  EXPECT_EQ(waits[0].args.at("tensor"), "x");
  EXPECT_EQ(waits[1].args.at("tensor"), "y");
  EXPECT_GE(waits[0].begin + kTimelineRounding, submitted);
  EXPECT_LE(timeline.spans("x", "allreduce")[0].end, waits[0].end + kTimelineRounding);
}

TEST(EngineTraceWait, AFinishedTensorIsNotWaitedFor) {
  TracedWorld world({1}, /*engine_threads=*/false);
  world.start();
  std::vector<float> values{1.0F};
  const auto submission = world.engine(0).submit("x", floats(1), bytes(values));
  while (!submission->finished()) world.engine(0).progress();
  world.engine(0).wait(*submission);
  world.stop();
  EXPECT_THAT(Timeline(world.file(0)).spans("", "wait"), IsEmpty());
}

TEST(EngineTraceErrors, ADisagreementEndsTheNegotiation) {
  TracedWorld world({2});
  world.start();
  world.on_all_ranks([&](int rank) {
    std::vector<float> values(4, 1.0F);
    EXPECT_THROW(world.engine(rank).submit_and_wait("x", floats(2 + rank), bytes(values)), Error);
  });
  world.stop();
  for (int rank = 0; rank < 2; ++rank) {
    const Timeline timeline(world.file(rank));
    EXPECT_THAT(timeline.spans("x", "negotiate"), SizeIs(1));
    EXPECT_THAT(timeline.marks("x", "mismatch"), SizeIs(1));
    EXPECT_THAT(timeline.spans("x", "allreduce"), IsEmpty());
  }
}

TEST(EngineTraceUnits, TensorsThatTravelTogetherSaySo) {
  TracedWorld world({1}, /*engine_threads=*/false);
  std::vector<float> values{1.0F, 2.0F};
  const auto both = [&] {
    const auto first = world.engine(0).submit("a", floats(1), bytes(values));
    const auto second =
        world.engine(0).submit("b", floats(1), reinterpret_cast<std::byte*>(values.data() + 1));
    world.engine(0).wait(*first);
    world.engine(0).wait(*second);
  };
  both();  // from now on the names are known, and ready in one batch
  world.start();
  both();
  world.stop();
  const Timeline timeline(world.file(0));
  for (const char* name : {"a", "b"}) {
    const auto runs = timeline.spans(name, "allreduce");
    ASSERT_THAT(runs, SizeIs(1));
    EXPECT_EQ(runs[0].args.at("unit_tensors"), 2);
    EXPECT_EQ(runs[0].args.at("bytes"), 4);
    EXPECT_EQ(runs[0].args.at("unit_bytes"), 128);
  }
}

using testing::Contains;

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
