// Recordings, and the file in which it is written.
#include "core/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Timeline;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// "row: name begin..end" of all that was recorded, in the order of events.
std::vector<std::string> taken(Recording& recording) {
  EventBatch batch;
  recording.take(batch);
  std::vector<std::string> texts;
  for (const TraceEvent& event : batch.events) {
    texts.push_back(batch.rows[event.row].name + ": " + std::string(event.name) + " " +
                    std::to_string(event.begin.count()) + ".." +
                    std::to_string((event.begin + event.duration).count()));
  }
  return texts;
}

const UnitFacts kFacts{"allreduce", "float32", "sum", 128, 2, 2};

TEST(Recording, AUnitThatNeverStartsHereQueuesUntilItIsComplete) {
  Recording recording;
  recording.planned({1}, kFacts, {{"a", 0, 20ns}});
  recording.completed({1}, 50ns);
  EXPECT_THAT(taken(recording), ElementsAre("a: queue 20..50", "a: allreduce 50..50"));
}

TEST(Recording, LeavesOutWhatBeganEarlierAndDropsWhatDoesNotFit) {
  Recording recording(4, 2);
  recording.started({1}, 5ns);
  recording.chunk({{1}, 64, 64, 0}, ChunkStage::ready, 6ns);
  recording.completed({1}, 8ns);
  EXPECT_EQ(recording.subject({1}), kNoRow);
  EventBatch batch;
  recording.take(batch);
  EXPECT_TRUE(batch.events.empty());
  EXPECT_EQ(batch.dropped, 0u);
  for (int i = 0; i < 7; ++i) recording.marked({"a"}, "ready", 1ns);
  recording.take(batch);
  EXPECT_EQ(batch.events.size(), 4u);
  EXPECT_EQ(batch.dropped, 3u);
  // Without a row.
  recording.planned({1}, kFacts, {{"b", 60, 0ns}, {"c", 60, 0ns}});
  recording.completed({1}, 2ns);
  recording.take(batch);
  EXPECT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.dropped, 5u);
}

TEST(Recording, SetsHaveTheirOwnRowsUnitsAndSlots) {
  Recording recording;
  for (const ProcessSet set : {kWorld, ProcessSet(2)}) {
    recording.marked({"a", set}, "ready", 1ns);
    recording.planned({1, set}, kFacts, {{"a", 60, 1ns}});
    recording.chunk({{1, set}, 0, 64, 3}, ChunkStage::local_in, 2ns);
  }
  recording.chunk({{1, ProcessSet(2)}, 0, 64, 3}, ChunkStage::done, 4ns);
  recording.completed({1, ProcessSet(2)}, 5ns);
  recording.waited("main thread", {"a", ProcessSet(2)}, 2ns, 6ns);
  EXPECT_NE(recording.subject({1, kWorld}), recording.subject({1, ProcessSet(2)}));
  EXPECT_THAT(taken(recording),
              ElementsAre("a: ready 1..1", "a: queue 1..2", "a (set 2): ready 1..1",
                          "a (set 2): queue 1..2", "chunk slot 3 (set 2): local_in 2..4",
                          "a (set 2): allreduce 2..5", "main thread: wait 2..6"));
}

/// A trace, and the timelines that it has written.
class TraceFile : public testing::Test {
 protected:
  void start(const std::string& name = "1",
             const TraceIdentity& identity = {.rank = 0, .size = 1, .node = 0, .host = "h"}) {
    trace_->start(folder_.file(name), identity);
  }
  void mark(const std::string& row, const char* name) { Tracer(&*trace_).marked(row, name); }
  std::string text() const { return test::read_file(folder_.file("1")); }
  /// Stops first.
  Timeline timeline(const std::string& name = "1") {
    trace_->stop();
    return Timeline(folder_.file(name));
  }

  const test::TemporaryFolder folder_;
  std::optional<Trace> trace_{std::in_place};
};

TEST_F(TraceFile, NamesTheProcessAndBothClocksAndEveryFact) {
  start("1", {.rank = 2, .size = 4, .node = 1, .host = "h"});
  trace_->record([](Recording& recording) {
    const UnitFacts facts{"allreduce", "float32", "average", 128, 2, 3};
    recording.negotiated({"grad"}, 1'000'000'000'123ns, 1'000'000'004'690ns, 3, 1234500ns);
    recording.planned({9}, facts, {{"grad", 100, 0ns}});
    recording.device({"GPU: upload", "upload", {9}, 64}, recording.subject({9}), 3ns, 4ns);
    recording.completed({9, kWorld}, 1000ns);
    recording.marked({"grad"}, "ready", 2000ns);
  });
  trace_->stop();
  std::string lines;
  for (json event : json::parse(text())) {
    if (event["name"] == "hora_timeline") {
      EXPECT_GT(event["args"].at("wall_clock_us"), event["args"].at("steady_clock_us"));
    }
    for (const char* clock : {"wall_clock_us", "steady_clock_us"}) {
      if (event.contains("args")) event["args"].erase(clock);
    }
    lines += event.dump() + "\n";
  }
  test::expect_golden("core/trace/events.txt", "every fact", lines);
}

TEST_F(TraceFile, NamesMayHoldAnyBytes) {
  start();
  for (const std::string& name : {std::string("a\"\\\n\x01\x7f\u009b\xff\xc3"),
                                  std::string("a\xfe"), std::string(1 << 20, 'n')}) {
    mark(name, "x");
  }
  EXPECT_EQ(timeline().rows().size(), 3u);
  EXPECT_TRUE(
      std::ranges::all_of(text(), [](char c) { return (c >= 0x20 && c < 0x7f) || c == '\n'; }));
  EXPECT_LT(text().size(), 10'000u);
}

TEST_F(TraceFile, IsForItsUserAloneAndFollowsNoLink) {
  const std::string path = folder_.file("1");
  std::ofstream(path) << "old";
  std::filesystem::permissions(path, std::filesystem::perms::all);
  start();
  trace_->stop();
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_THAT(text(), testing::StartsWith("["));
  std::filesystem::create_symlink(path, folder_.file("link"));
  EXPECT_THROW(start("link"), Error);
}

TEST_F(TraceFile, AFullDiskIsSaidInTheEnd) {
  trace_.emplace(TraceOptions{.write_interval = 1ms});
  start();
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{std::filesystem::file_size(folder_.file("1")), before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  for (int i = 0; i < 1000; ++i) mark("a", "x");
  test::expect_error(ErrorCode::transport,
                     AllOf(HasSubstr(folder_.file("1")), HasSubstr("File too large")),
                     [&] { trace_->stop(); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

TEST_F(TraceFile, IsWrittenFromStartToStopAndAgain) {
  mark("a", "before");
  start("1");
  EXPECT_TRUE(trace_->on());
  mark("a", "first");
  const Timeline first = timeline("1");
  EXPECT_FALSE(trace_->on());
  mark("a", "between");
  start("2");
  mark("b", "second");
  const Timeline second = timeline("2");
  EXPECT_EQ(first.marks("").size(), 1u);
  EXPECT_EQ(first.marks("a", "first").size(), 1u);
  EXPECT_EQ(second.marks("").size(), 1u);
  EXPECT_EQ(second.marks("b", "second").size(), 1u);
  start("1");
  EXPECT_TRUE(timeline("1").marks("").empty()) << "the file is replaced";
}

TEST_F(TraceFile, SaysWhatHasNotFit) {
  trace_.emplace(TraceOptions{.events = 64});
  start();
  // Under one lock: the writer cannot make room.
  trace_->record([](Recording& recording) {
    for (int i = 0; i < 200; ++i) recording.marked({"a"}, "x", trace_now());
  });
  const Timeline written = timeline();
  EXPECT_EQ(written.marks("a", "x").size(), 64u);
  EXPECT_EQ(written.dropped(), 200u - 64u);
  EXPECT_EQ(written.marks("", "events dropped").size(), 1u);
}

TEST_F(TraceFile, HoldsAfterACrashWhatIsOlderThanTheInterval) {
  trace_.emplace(TraceOptions{.write_interval = 1ms});
  start();
  mark("a", "x");
  while (text().find("\"x\"") == std::string::npos) continue;
  EXPECT_TRUE(json::accept(text() + "]"));
}

class LateSource final : public TraceSource {
 public:
  explicit LateSource(Trace& trace, int polls) : trace_(trace), polls_(polls) {
    trace_.attach(*this);
  }
  ~LateSource() override { trace_.detach(*this); }
  bool collect() override {
    if (polls_ > 0 && --polls_ == 0) {
      trace_.record([](Recording& recording) {
        recording.device({"GPU", "late", {0}, 0}, kNoRow, 1ns, 2ns);
      });
    }
    return polls_ > 0;
  }
  std::uint64_t drop() noexcept override { return static_cast<std::uint64_t>(polls_); }

 private:
  Trace& trace_;
  int polls_;
};

TEST_F(TraceFile, WaitsForSourcesButNotForEver) {
  {
    const LateSource source(*trace_, 5);
    start();
    EXPECT_EQ(timeline().spans("GPU", "late").size(), 1u);
  }
  trace_.emplace(TraceOptions{.source_limit = 3ms});
  const LateSource source(*trace_, 1'000'000'000);
  start();
  EXPECT_GT(timeline().dropped(), 0u);
}

TEST(TimelinePath, HasTheRankWhereItSaysOrBeforeTheExtension) {
  EXPECT_EQ(timeline_file("%r.json", 3), "3.json");
  EXPECT_EQ(timeline_file("/a/%r/t%r", 12), "/a/12/t12");
  EXPECT_EQ(timeline_file("%r%r", 0), "00");
  EXPECT_EQ(timeline_file("t.json", 0), "t.0.json");
  EXPECT_EQ(timeline_file("/a.b/t", 7), "/a.b/t.7");
  EXPECT_EQ(timeline_file("a/t.x.json", 10), "a/t.x.10.json");
}

}  // namespace
}  // namespace hora::internal
