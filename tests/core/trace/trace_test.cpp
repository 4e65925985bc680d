// Recordings, and the file in which it is written.
#include "core/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
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

const TraceIdentity kOnlyRank{.rank = 0, .size = 1, .node = 0, .host = "h"};

json written(const TraceIdentity& identity, const std::function<void(Recording&)>& body) {
  const test::TemporaryFolder folder;
  Trace trace;
  trace.start(folder.file("t.json"), identity);
  trace.record(body);
  trace.stop();
  return json::parse(test::read_file(folder.file("t.json")));
}

TEST(TraceFile, NamesTheProcessAndBothClocksAndEveryFact) {
  const json events = written({.rank = 2, .size = 4, .node = 1, .host = "h"}, [](auto& recording) {
    const UnitFacts facts{"allreduce", "float32", "average", 128, 2, 3};
    recording.negotiated({"grad"}, 1'000'000'000'123ns, 1'000'000'004'690ns, 3, 1234500ns);
    recording.planned({9}, facts, {{"grad", 100, 0ns}});
    recording.device({"GPU: upload", "upload", {9}, 64}, recording.subject({9}), 3ns, 4ns);
    recording.completed({9, kWorld}, 1000ns);
    recording.marked({"grad"}, "ready", 2000ns);
  });
  const auto named = [&](const std::string& name) {
    const auto found =
        std::ranges::find_if(events, [&](const json& event) { return event["name"] == name; });
    return found == events.end() ? json() : *found;
  };
  EXPECT_EQ(named("process_name"), (json{{"name", "process_name"},
                                         {"ph", "M"},
                                         {"pid", 2},
                                         {"tid", 0},
                                         {"args", {{"name", "rank 2 (h)"}}}}));
  json header = named("hora_timeline").at("args");
  EXPECT_GT(header.at("wall_clock_us"), header.at("steady_clock_us"));
  header.erase("wall_clock_us");
  header.erase("steady_clock_us");
  EXPECT_EQ(header, (json{{"rank", 2}, {"size", 4}, {"node", 1}, {"host", "h"}}));
  EXPECT_EQ(named("negotiate"), (json{{"name", "negotiate"},
                                      {"cat", "tensor"},
                                      {"ph", "X"},
                                      {"ts", 1'000'000'000.123},
                                      {"dur", 4.567},
                                      {"pid", 2},
                                      {"tid", 300001},
                                      {"args", {{"last_rank", 3}, {"late_us", 1234.5}}}}));
  EXPECT_EQ(named("ready"), (json{{"name", "ready"},
                                  {"cat", "tensor"},
                                  {"ph", "i"},
                                  {"ts", 2.0},
                                  {"s", "t"},
                                  {"pid", 2},
                                  {"tid", 300001}}));
  EXPECT_EQ(named("allreduce").at("args"), (json{{"unit", 9},
                                                 {"bytes", 100},
                                                 {"type", "float32"},
                                                 {"op", "average"},
                                                 {"unit_bytes", 128},
                                                 {"unit_tensors", 2},
                                                 {"unit_chunks", 3}}));
  EXPECT_EQ(named("upload").at("args"), (json{{"tensor", "grad"}, {"unit", 9}, {"bytes", 64}}));
  EXPECT_EQ(named("hora_timeline_end").at("args").at("dropped_events"), 0);
}

TEST(TraceFile, NamesMayHoldAnyBytes) {
  const test::TemporaryFolder folder;
  Trace trace;
  trace.start(folder.file("t.json"), kOnlyRank);
  for (const std::string& name : {std::string("a\"\\\n\x01\x7f\u009b\xff\xc3"),
                                  std::string("a\xfe"), std::string(1 << 20, 'n')}) {
    Tracer(&trace).marked(name, "x");
  }
  trace.stop();
  const std::string text = test::read_file(folder.file("t.json"));
  EXPECT_TRUE(
      std::ranges::all_of(text, [](char c) { return (c >= 0x20 && c < 0x7f) || c == '\n'; }));
  EXPECT_LT(text.size(), 10'000u);
  EXPECT_EQ(Timeline(folder.file("t.json")).rows().size(), 3u);
}

TEST(TraceFile, IsForItsUserAloneAndFollowsNoLink) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("t.json");
  std::ofstream(path) << "old";
  std::filesystem::permissions(path, std::filesystem::perms::all);
  Trace trace;
  trace.start(path, kOnlyRank);
  trace.stop();
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_THAT(test::read_file(path), testing::StartsWith("["));
  std::filesystem::create_symlink(path, folder.file("link"));
  EXPECT_THROW(trace.start(folder.file("link"), kOnlyRank), Error);
}

/// Files of this process grow no further than `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uintmax_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(TraceFile, AFullDiskIsSaidInTheEnd) {
  const test::TemporaryFolder folder;
  Trace trace({.write_interval = 1ms});
  trace.start(folder.file("t.json"), kOnlyRank);
  const FileSizeLimit limit(std::filesystem::file_size(folder.file("t.json")));
  for (int i = 0; i < 1000; ++i) Tracer(&trace).marked("a", "x");
  test::expect_error(ErrorCode::transport,
                     AllOf(HasSubstr(folder.file("t.json")), HasSubstr("File too large")),
                     [&] { trace.stop(); });
}

TEST(Trace, WritesFromStartToStopAndAgain) {
  const test::TemporaryFolder folder;
  Trace trace;
  const Tracer tracer(&trace);
  tracer.marked("a", "before");
  trace.start(folder.file("1"), kOnlyRank);
  EXPECT_TRUE(trace.on());
  tracer.marked("a", "first");
  trace.stop();
  EXPECT_FALSE(trace.on());
  tracer.marked("a", "between");
  trace.start(folder.file("2"), kOnlyRank);
  tracer.marked("b", "second");
  trace.stop();
  const Timeline first(folder.file("1"));
  const Timeline second(folder.file("2"));
  EXPECT_EQ(first.marks("").size(), 1u);
  EXPECT_EQ(first.marks("a", "first").size(), 1u);
  EXPECT_EQ(second.marks("").size(), 1u);
  EXPECT_EQ(second.marks("b", "second").size(), 1u);
  trace.start(folder.file("1"), kOnlyRank);
  trace.stop();
  EXPECT_TRUE(Timeline(folder.file("1")).marks("").empty()) << "the file is replaced";
}

TEST(Trace, WhatDoesNotFitIsDroppedAndTheFileSaysSo) {
  const test::TemporaryFolder folder;
  Trace trace({.events = 64});
  trace.start(folder.file("1"), kOnlyRank);
  // Under one lock: the writer cannot make room.
  trace.record([](Recording& recording) {
    for (int i = 0; i < 200; ++i) recording.marked({"a"}, "x", trace_now());
  });
  trace.stop();
  const Timeline timeline(folder.file("1"));
  EXPECT_EQ(timeline.marks("a", "x").size(), 64u);
  EXPECT_EQ(timeline.dropped(), 200u - 64u);
  EXPECT_EQ(timeline.marks("", "events dropped").size(), 1u);
}

TEST(Trace, ACrashLeavesWhatIsOlderThanTheInterval) {
  const test::TemporaryFolder folder;
  Trace trace({.write_interval = 1ms});
  trace.start(folder.file("1"), kOnlyRank);
  Tracer(&trace).marked("a", "x");
  std::string text;
  while (text.find("\"x\"") == text.npos) text = test::read_file(folder.file("1"));
  EXPECT_TRUE(nlohmann::json::accept(text + "]"));
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

TEST(Trace, StopWaitsForSources) {
  const test::TemporaryFolder folder;
  Trace trace;
  const LateSource source(trace, 5);
  trace.start(folder.file("1"), kOnlyRank);
  trace.stop();
  EXPECT_EQ(Timeline(folder.file("1")).spans("GPU", "late").size(), 1u);
}

TEST(Trace, StopDoesNotWaitForEver) {
  const test::TemporaryFolder folder;
  Trace trace({.source_limit = 3ms});
  const LateSource source(trace, 1'000'000'000);
  trace.start(folder.file("1"), kOnlyRank);
  trace.stop();
  EXPECT_GT(Timeline(folder.file("1")).dropped(), 0u);
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
