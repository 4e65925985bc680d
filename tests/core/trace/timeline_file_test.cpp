#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "core/trace/trace.h"
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

TEST(TimelineFile, AFileThatCannotBeWrittenIsAnErrorAtOnce) {
  const test::TemporaryFolder folder;
  for (const std::string& path :
       {folder.file("no/such/folder.json"), folder.path().string(), std::string("/dev/full")}) {
    const Error error =
        test::expect_error(ErrorCode::invalid_argument, AllOf(HasSubstr("rank 1"), HasSubstr(path)),
                           [&] { const TimelineFile file(path, kSecondRank, {}); });
    EXPECT_EQ(error.rank(), 1);
  }
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

}  // namespace
}  // namespace hora::internal
