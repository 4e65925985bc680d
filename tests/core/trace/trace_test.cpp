#include "core/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/expect_error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

const TraceIdentity kSecondRank{.rank = 1, .size = 2, .node = 0, .host = "h"};

EventBatch batch_of(std::size_t events, std::uint64_t dropped = 0) {
  EventBatch batch;
  batch.rows = {{RowGroup::tensors, "a"}};
  for (std::size_t i = 0; i < events; ++i) {
    TraceEvent event;
    event.name = "negotiate";
    event.begin = std::chrono::nanoseconds(i);
    batch.events.push_back(event);
  }
  batch.dropped = dropped;
  return batch;
}

TEST(TimelineFile, IsAnArrayOnceItHasEnded) {
  const test::TemporaryFolder folder;
  TimelineFile file(folder.file("t.json"), kSecondRank, {});
  file.write(batch_of(3), 1ns);
  EventBatch more = batch_of(2);
  more.rows.clear();
  file.write(more, 2ns);
  file.end(0, 3ns);
  const test::Timeline timeline(file.path());
  EXPECT_EQ(timeline.spans("a", "negotiate").size(), 5u);
  EXPECT_EQ(timeline.pid(), 1);
  EXPECT_EQ(timeline.dropped(), 0u);
  EXPECT_THAT(timeline.marks(""), IsEmpty());
}

TEST(TimelineFile, OnlyTheBracketIsMissingBeforeTheEnd) {
  const test::TemporaryFolder folder;
  TimelineFile file(folder.file("t.json"), kSecondRank, {});
  file.write(batch_of(3), 1ns);
  const auto json = nlohmann::json::parse(test::read_file(file.path()) + "]");
  EXPECT_EQ(json.size(), 3 + 2 + 3u) << "header, a row, events";
}

TEST(TimelineFile, SaysWhereAndHowManyEventsWereDropped) {
  const test::TemporaryFolder folder;
  TimelineFile file(folder.file("t.json"), kSecondRank, {});
  file.write(batch_of(1, 5), 1000ns);
  file.write({{}, {}, 5}, 2000ns);
  file.end(5, 3000ns);
  const test::Timeline timeline(file.path());
  const auto marks = timeline.marks("", "events dropped");
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0].args.at("dropped_events"), 5);
  EXPECT_EQ(timeline.dropped(), 5u);
}

TEST(TimelineFile, IsForItsUserAloneAndFollowsNoLink) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("t.json")) << "old";
  std::filesystem::permissions(folder.file("t.json"), std::filesystem::perms::all);
  { const TimelineFile file(folder.file("t.json"), kSecondRank, {}); }
  EXPECT_EQ(std::filesystem::status(folder.file("t.json")).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_THAT(test::read_file(folder.file("t.json")), testing::StartsWith("["));
  std::filesystem::create_symlink(folder.file("t.json"), folder.file("link"));
  EXPECT_THROW(TimelineFile(folder.file("link"), kSecondRank, {}), Error);
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

TEST(TimelineFile, AFullDiskIsRememberedAndNothingElseHappens) {
  const test::TemporaryFolder folder;
  TimelineFile file(folder.file("t.json"), kSecondRank, {});
  {
    const FileSizeLimit limit(std::filesystem::file_size(file.path()));
    file.write(batch_of(1000), 1ns);
  }
  EXPECT_THAT(file.problem(), AllOf(HasSubstr(file.path()), HasSubstr("File too large")));
  file.write(batch_of(3), 1ns);
  file.end(0, 3ns);
  EXPECT_THAT(file.problem(), HasSubstr("File too large")) << "the first problem counts";
}

using test::Timeline;

const TraceIdentity kOnlyRank{.rank = 0, .size = 1, .node = 0, .host = "h"};

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

TEST(Trace, ItsEndCompletesTheFile) {
  const test::TemporaryFolder folder;
  {
    Trace trace;
    trace.start(folder.file("1"), kOnlyRank);
    Tracer(&trace).marked("a", "x");
  }
  EXPECT_EQ(Timeline(folder.file("1")).marks("a").size(), 1u);
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

TEST(Trace, ThreadsRecordWhileItIsStartedAndStopped) {
  const test::TemporaryFolder folder;
  Trace trace({.write_interval = 1ms});
  std::atomic<bool> ending{false};
  std::vector<std::jthread> threads;
  for (const char* name : {"a", "b"}) {
    threads.emplace_back([&, name] {
      while (!ending) {
        Tracer(&trace).marked(name, "x");
        std::this_thread::sleep_for(10us);  // so that files stay short
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    trace.start(folder.file("1"), kOnlyRank);
    Tracer(&trace).marked("main", "x");
    trace.stop();
    const Timeline timeline(folder.file("1"));
    EXPECT_EQ(timeline.marks("main").size(), 1u);
  }
  ending = true;
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

}  // namespace

}  // namespace hora::internal
