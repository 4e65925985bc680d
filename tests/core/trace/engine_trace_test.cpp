/// A timeline of real engines and pipelines, process sets and exchanges, ranks as threads.

#include "core/trace/trace.h"
#include "tests/core/engine/engine_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using namespace test;
using testing::Contains;
using testing::IsEmpty;
using testing::SizeIs;

/// Ranks with a trace each.
class TracedWorld {
 public:
  /// `small_message`: 0: no name is eager, which has no chunks.
  explicit TracedWorld(std::vector<int> node_sizes, bool engine_threads = true,
                       std::size_t small_message = Settings().small_message) {
    for (const int size : node_sizes)
      traces_.resize(traces_.size() + static_cast<std::size_t>(size));
    ThreadWorldOptions options{.node_sizes = std::move(node_sizes),
                               .settings = {},
                               .engine_threads = engine_threads,
                               .trace = [this](int rank) { return Tracer(&trace(rank)); }};
    options.settings.chunk_size = 4096;
    options.settings.small_message = small_message;
    world_ = std::make_unique<ThreadWorld>(options);
  }
  int size() const { return world_->size(); }
  Engine& engine(int rank) { return world_->engine(rank); }
  void start() {
    for (int rank = 0; rank < size(); ++rank) trace(rank).start(file(rank), {rank, size(), 0, "h"});
  }
  void stop() {
    for (Trace& trace : traces_) trace.stop();
  }
  void on_all_ranks(const std::function<void(int)>& body) { test::on_all_ranks(*world_, body); }
  Timeline timeline(int rank) const { return Timeline(file(rank)); }

 private:
  Trace& trace(int rank) { return traces_[static_cast<std::size_t>(rank)]; }
  std::string file(int rank) const { return folder_.file(std::to_string(rank) + ".json"); }

  TemporaryFolder folder_;
  std::deque<Trace> traces_;
  std::unique_ptr<ThreadWorld> world_;
};

constexpr int kRounds = 5;
const std::map<std::string, std::int64_t> kTensors = {{"a", 17}, {"b", 5000}, {"empty", 0}};

/// Every collective of the row, one behind the other: negotiated, queued and run. The runs.
std::vector<TimelineSpan> runs_of(const Timeline& timeline, const std::string& row) {
  const auto spans = timeline.spans(row);
  EXPECT_THAT(spans, SizeIs(3 * kRounds)) << row;
  EXPECT_FALSE(overlap(spans)) << row;
  std::vector<TimelineSpan> runs;
  for (std::size_t i = 0; i + 2 < spans.size(); i += 3) {
    EXPECT_EQ(spans[i].name, "negotiate");
    EXPECT_EQ(spans[i + 1].name, "queue");
    EXPECT_EQ(spans[i + 2].name, "allreduce");
    EXPECT_NEAR(spans[i].end, spans[i + 1].begin, kTimelineRounding);
    EXPECT_NEAR(spans[i + 1].end, spans[i + 2].begin, kTimelineRounding);
    EXPECT_EQ(spans[i + 1].args.at("unit"), spans[i + 2].args.at("unit"));
    runs.push_back(spans[i + 2]);
  }
  return runs;
}

/// Each chunk passes its stages within the run of its unit. `has_slice`: between nodes ranks beyond
/// the smallest node's size have none.
void expect_chunks(const Timeline& timeline, bool has_slice) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<TimelineSpan>> chunks;
  for (const std::string& row : timeline.rows()) {
    if (!row.starts_with("chunk slot ")) continue;
    EXPECT_FALSE(overlap(timeline.spans(row)));
    for (const TimelineSpan& span : timeline.spans(row)) {
      chunks[{span.args.at("unit"), span.args.at("offset")}].push_back(span);
    }
  }
  EXPECT_EQ(has_slice, !chunks.empty());
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
    EXPECT_EQ(chunks_of_unit[unit],
              has_slice ? run.args.at("unit_chunks").get<std::uint64_t>() : 0);
    for (const auto& [key, stages] : chunks) {
      if (key.first != unit) continue;
      EXPECT_GE(stages.front().begin + kTimelineRounding, run.begin);
      EXPECT_LE(stages.back().end, run.end + kTimelineRounding);
    }
  }
}

class EngineTrace : public testing::TestWithParam<std::vector<int>> {};

// The first negotiation of a name is reported, later ones are ready bits.
TEST_P(EngineTrace, EachTensorIsNegotiatedThenQueuedThenRunInChunks) {
  TracedWorld world(GetParam(), /*engine_threads=*/true, /*small_message=*/0);
  world.start();
  world.on_all_ranks([&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      std::map<std::string, std::vector<float>> values;
      std::vector<std::shared_ptr<Operation>> submissions;
      for (const auto& [name, count] : kTensors) {
        values[name].assign(static_cast<std::size_t>(count), 1.0F);
        submissions.push_back(world.engine(rank).submit(sum_of(values[name], name)));
      }
      for (const auto& submission : submissions) world.engine(rank).wait(*submission);
    }
  });
  world.stop();
  const int slices = GetParam().size() > 1 ? std::ranges::min(GetParam()) : 0;
  std::vector<int> local_ranks;
  for (const int size : GetParam()) {
    for (int local = 0; local < size; ++local) local_ranks.push_back(local);
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Timeline timeline = world.timeline(rank);
    EXPECT_EQ(timeline.pid(), rank);
    EXPECT_EQ(timeline.dropped(), 0u);
    for (const auto& [name, count] : kTensors) {
      for (const TimelineSpan& run : runs_of(timeline, name)) {
        EXPECT_EQ(run.args.at("bytes"), count * 4);
        EXPECT_EQ(run.args.at("type"), "float32");
        EXPECT_EQ(run.args.at("op"), "sum");
        EXPECT_GE(run.args.at("unit_tensors"), 1);
        EXPECT_GE(run.args.at("unit_bytes"), run.args.at("bytes"));
      }
    }
    const auto negotiations = timeline.spans("a", "negotiate");
    const auto marks = timeline.marks("a");
    EXPECT_EQ(marks.at(0).name, "reported");
    EXPECT_THAT(timeline.marks("a", "ready"), SizeIs(kRounds - 1));
    for (const TimelineSpan& mark : marks) {
      EXPECT_GE(mark.begin, negotiations.front().begin);
      EXPECT_LE(mark.begin, negotiations.back().end);
    }
    expect_chunks(timeline, local_ranks[static_cast<std::size_t>(rank)] < slices);
  }
}

// The root alone knows where there are several nodes.
TEST_P(EngineTrace, NegotiationsSayWhoCameLast) {
  TracedWorld world(GetParam());
  const int late = world.size() - 1;
  world.start();
  world.on_all_ranks([&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      if (rank == late) std::this_thread::sleep_for(20ms);
      summed(world.engine(rank), "x");
    }
  });
  world.stop();
  for (int rank = 0; rank < world.size(); ++rank) {
    const bool knows = world.size() > 1 && (GetParam().size() == 1 || rank == 0);
    const auto spans = world.timeline(rank).spans("x", "negotiate");
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

TEST_P(EngineTrace, CanBeSwitchedWhileCollectivesRun) {
  TracedWorld world(GetParam());
  std::atomic<bool> ending{false};
  std::jthread training([&] {
    world.on_all_ranks([&](int rank) {
      // All ranks end in the same round: rank 0 decides when.
      const auto own = [&] { return rank == 0 && ending ? 1.0F : 0.0F; };
      while (summed(world.engine(rank), "x", 1, own()) == 0.0F) {
        std::this_thread::sleep_for(200us);  // so that files stay short
      }
    });
  });
  for (int round = 0; round < 6; ++round) {
    world.start();
    // In every other round at least one operation begins and ends inside.
    const bool waits = round % 2 == 1;
    const std::uint64_t before = world.engine(0).sets().statistics().operations;
    while (waits && world.engine(0).sets().statistics().operations < before + 2)
      std::this_thread::yield();
    world.stop();
    for (int rank = 0; rank < world.size(); ++rank) {
      EXPECT_FALSE(overlap(world.timeline(rank).spans("x")));
    }
    EXPECT_GE(world.timeline(0).spans("x", "allreduce").size(), waits ? 1u : 0u);
  }
  ending = true;
}

constexpr std::size_t kCount = 3000;  // several chunks between nodes

// Both at once, with one name: numbers of units and slots of chunks are the same in both.
TEST_P(EngineTrace, ATensorOfASetHasItsRowBesideThatOfTheWorlds) {
  TracedWorld world(GetParam());
  if (world.size() == 1) return;
  const auto is_member = [&](int rank) { return rank == 0 || rank == world.size() - 1; };
  world.on_all_ranks([&](int rank) {
    EXPECT_EQ(world.engine(rank).sets().add({0, world.size() - 1}), ProcessSet(1));
  });
  world.start();
  world.on_all_ranks([&](int rank) {
    Engine& engine = world.engine(rank);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> of_world(kCount, 1.0F);
      const auto first = engine.submit(sum_of(of_world, "x"));
      if (is_member(rank)) summed(engine, "x", kCount, 1.0F, ProcessSet(1));
      engine.wait(*first);
    }
  });
  world.stop();
  for (int rank = 0; rank < world.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const Timeline timeline = world.timeline(rank);
    for (const auto& run : runs_of(timeline, "x")) EXPECT_FALSE(run.args.contains("set"));
    if (!is_member(rank)) {
      EXPECT_THAT(timeline.spans("x (set 1)"), IsEmpty());
      continue;
    }
    for (const auto& run : runs_of(timeline, "x (set 1)")) {
      EXPECT_EQ(run.args.at("set"), 1);
      EXPECT_EQ(run.args.at("bytes"), kCount * 4);
    }
    for (const std::string& row : timeline.rows()) {
      if (!row.starts_with("chunk slot ")) continue;
      EXPECT_FALSE(overlap(timeline.spans(row))) << row;
    }
    // Between nodes the first and the last rank have a slice of the set's chunks.
    const bool between_nodes = GetParam().size() > 1;
    EXPECT_THAT(timeline.rows(), Contains("chunk slot 0 (set 1)").Times(between_nodes ? 1 : 0));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, EngineTrace,
                         testing::Values(std::vector{1}, std::vector{3}, std::vector{1, 1},
                                         std::vector{2, 2}, std::vector{2, 1}),
                         layout_name);

// Without an engine thread only wait() itself makes progress, so it is sure to be blocked, but
// where the tensor has finished before.
TEST(EngineTraceWait, ShowsTheTimeThatAThreadIsBlocked) {
  TracedWorld world({1}, /*engine_threads=*/false);
  Engine& engine = world.engine(0);
  world.start();
  std::vector<float> values{1.0F};
  const auto submission = engine.submit(sum_of(values, "x"));
  const double submitted = static_cast<double>(trace_now().count()) / 1000.0;
  engine.wait(*submission);
  summed(engine, "y");
  const auto finished = engine.submit(sum_of(values, "z"));
  while (!finished->finished()) engine.progress();
  engine.wait(*finished);
  world.stop();
  const Timeline timeline = world.timeline(0);
  const auto waits = timeline.spans("main thread", "wait");
  ASSERT_THAT(waits, SizeIs(2));
  EXPECT_EQ(waits[0].args.at("tensor"), "x");
  EXPECT_EQ(waits[1].args.at("tensor"), "y");
  EXPECT_GE(waits[0].begin + kTimelineRounding, submitted);
  EXPECT_LE(timeline.spans("x", "allreduce")[0].end, waits[0].end + kTimelineRounding);
}

TEST(EngineTraceErrors, ADisagreementEndsTheNegotiation) {
  TracedWorld world({2});
  world.start();
  world.on_all_ranks([&](int rank) {
    std::vector<float> values(static_cast<std::size_t>(2 + rank));
    EXPECT_THROW(world.engine(rank).submit_and_wait(sum_of(values, "x")), Error);
  });
  world.stop();
  for (int rank = 0; rank < 2; ++rank) {
    const Timeline timeline = world.timeline(rank);
    EXPECT_THAT(timeline.spans("x", "negotiate"), SizeIs(1));
    EXPECT_THAT(timeline.marks("x", "mismatch"), SizeIs(1));
    EXPECT_THAT(timeline.spans("x", "allreduce"), IsEmpty());
  }
}

TEST(EngineTraceUnits, TensorsThatTravelTogetherSaySo) {
  TracedWorld world({1}, /*engine_threads=*/false);
  std::vector<float> a{1.0F}, b{2.0F};
  const auto both = [&, &engine = world.engine(0)] {
    const auto first = engine.submit(sum_of(a, "a")), second = engine.submit(sum_of(b, "b"));
    engine.wait(*first);
    engine.wait(*second);
  };
  both();  // from now on the names are known, and ready in one batch
  world.start();
  both();
  world.stop();
  const Timeline timeline = world.timeline(0);
  for (const char* name : {"a", "b"}) {
    const auto runs = timeline.spans(name, "allreduce");
    ASSERT_THAT(runs, SizeIs(1));
    EXPECT_EQ(runs[0].args.at("unit_tensors"), 2);
    EXPECT_EQ(runs[0].args.at("bytes"), 4);
    EXPECT_EQ(runs[0].args.at("unit_bytes"), 128);
  }
}

}  // namespace
}  // namespace hora::internal
