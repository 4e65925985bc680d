#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "core/launch/control/system.h"
#include "core/launch/supervisor/launcher.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;

class RankOutputTest : public testing::Test {
 protected:
  RankOutputOptions options() const {
    RankOutputOptions result;
    result.output = output_.write.get();
    result.error = error_.write.get();
    return result;
  }
  static std::string contents(const Pipe& pipe) {
    char bytes[1000];
    pollfd entry{pipe.read.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) return {};
    return {bytes, static_cast<std::size_t>(::read(pipe.read.get(), bytes, sizeof bytes))};
  }
  Pipe output_ = make_pipe(), error_ = make_pipe();
};

TEST_F(RankOutputTest, IsPassedOnInWholeLines) {
  RankOutputOptions asked = options();
  int times = 0;
  asked.before_output = [&] { ++times; };
  RankOutputWriter writer(asked);
  writer.write(0, "a", false, "half a li");
  EXPECT_EQ(times, 0) << "nothing was shown yet";
  EXPECT_FALSE(writer.in_line());
  writer.write(1, "a", true, "error\n");
  EXPECT_EQ(contents(output_), "");
  EXPECT_EQ(contents(error_), "error\n");
  writer.write(0, "a", false, "ne\nend");
  EXPECT_EQ(contents(output_), "half a line\n");
  EXPECT_EQ(times, 2);
  writer.finish();
  EXPECT_TRUE(writer.in_line());
  EXPECT_EQ(contents(output_), "end");
}

TEST_F(RankOutputTest, AQuestionIsShownBeforeItsLineEnds) {
  const std::chrono::steady_clock::time_point start{};
  RankOutputWriter writer(options());
  writer.write(0, "a", false, "continue? ");
  writer.on_time(start);
  writer.on_time(start + std::chrono::milliseconds(199));
  EXPECT_EQ(contents(output_), "");
  writer.on_time(start + std::chrono::milliseconds(200));
  EXPECT_EQ(contents(output_), "continue? ");
}

TEST_F(RankOutputTest, LinesHaveHostAndRankAndAreWhole) {
  RankOutputOptions with_prefix = options();
  with_prefix.prefix = true;
  RankOutputWriter writer(with_prefix);
  writer.write(0, "a", false, "one\nhal");
  writer.write(3, "b", false, "other\n");
  writer.write(0, "a", false, "f\nend");
  EXPECT_EQ(contents(output_), "a:0: one\nb:3: other\na:0: half\n");
  writer.finish();
  EXPECT_EQ(contents(output_), "a:0: end\n");
}

TEST_F(RankOutputTest, OnlySomeRanksAreShownAndAllAreWritten) {
  const TemporaryFolder folder;
  RankOutputOptions some = options();
  some.shown = {1};
  some.folder = folder.file("new/logs");
  RankOutputWriter writer(some);
  writer.write(0, "a", false, "zero\n");
  writer.write(0, "a", true, "problem\n");
  writer.write(1, "a", false, "one\n");
  EXPECT_EQ(contents(output_), "one\n");
  EXPECT_EQ(contents(error_), "");
  EXPECT_EQ(internal::test::read_file(folder.file("new/logs/rank.0")), "zero\nproblem\n");
  struct stat status {};
  ASSERT_EQ(::stat(folder.file("new/logs/rank.0").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(folder.file("new/logs").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
}

TEST_F(RankOutputTest, SaysWhereOutputWasLostFirst) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  RankOutputOptions lost = options();
  lost.output = full.get();
  RankOutputWriter writer(lost);
  writer.write(0, "a", true, "error\n");
  EXPECT_EQ(writer.failure(), "");
  writer.write(0, "a", false, "line\n");
  EXPECT_EQ(writer.failure(), "standard output: No space left on device");
  ::signal(SIGPIPE, SIG_IGN);
  output_.read.reset();
  RankOutputWriter without_reader(options());
  without_reader.write(0, "a", false, "line\n");
  EXPECT_EQ(without_reader.failure(), "") << "its reader is gone";
}

TEST_F(RankOutputTest, WaitsForASlowReaderThatDoesNotBlock) {
  ::fcntl(output_.write.get(), F_SETFL, O_NONBLOCK);
  const std::string line = std::string(1 << 20, 'x') + "\n";
  std::size_t read = 0;
  std::jthread reader([&] {
    std::array<char, 65536> bytes;
    while (read < line.size()) {
      read += static_cast<std::size_t>(::read(output_.read.get(), bytes.data(), bytes.size()));
    }
  });
  RankOutputWriter writer(options());
  writer.write(0, "a", false, line);
  EXPECT_EQ(writer.failure(), "");
}

TEST_F(RankOutputTest, AFolderThatCannotBeMadeIsNamed) {
  RankOutputOptions wrong = options();
  wrong.folder = "/proc/none/logs";
  try {
    RankOutputWriter writer(wrong);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("--output-filename: /proc/none/logs"));
  }
}

}  // namespace
}  // namespace hora::launch
