#include "core/launch/supervisor/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <sstream>
#include <thread>

#include "core/flight/flight_recorder.h"
#include "core/launch/control/system.h"
#include "core/launch/guard/guard.h"

namespace hora::launch {
namespace {

using internal::RecordState;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

std::vector<std::string> lines_of_view(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Makes a message about a rank; everything else has its default.
template <class Body>
Body of(int rank) {
  Body message;
  message.rank = rank;
  return message;
}

RankStopped stopped(int rank) {
  auto message = of<RankStopped>(rank);
  message.stopped = true;
  return message;
}

RankSeen at_work(int rank, RecordState state = RecordState::initialised) {
  RankSeen message;
  message.rank = rank;
  message.state = static_cast<std::uint8_t>(state);
  message.submitted = 40;
  message.collective = "hora.gradients.0.3";
  message.phase = "epoch 2";
  return message;
}

ArrivalsSeen arrivals(std::uint64_t steps, int most_often_last = 2) {
  ArrivalsSeen message;
  message.decisions = 4 * steps;
  message.steps = steps;
  message.rows = {{static_cast<std::uint32_t>(3 * steps), 4.12F, 9, most_often_last, 1},
                  {static_cast<std::uint32_t>(steps), 0.1F, 0.25F, 0, 0}};
  return message;
}

TEST(LiveView, ShowsARowForEachRank) {
  LiveView job({{"a", 2}, {"b", 1}}, Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, of<RankStarted>(rank), Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, at_work(rank), Moment(1100));
  job.on_message(0, arrivals(10), Moment(2000));
  job.on_message(0, arrivals(30), Moment(4000));
  EXPECT_THAT(
      lines_of_view(job.table(Moment(5000))),
      ElementsAre(
          "horarun: 4 s: step 30, 10 a second, 120 decisions; most often last: rank 2 (host b), 75 "
          "%, "
          "median "
          "4.12 ms, p99 9 ms, mostly in \"backward\"",
          "rank  host  collectives  last collective     last   median      p99  lost in            "
          "state  doing",
          "   0  a              40  hora.gradients.0.3  25 %   0.1 ms  0.25 ms  input and forward  "
          "runs   epoch 2",
          "   1  a              40  hora.gradients.0.3                                             "
          "runs   epoch 2",
          "   2  b              40  hora.gradients.0.3  75 %  4.12 ms     9 ms  backward           "
          "runs   epoch 2"));
}

TEST(LiveView, SaysInWhichStateARankIs) {
  LiveView job({{"a", 9}}, Moment(0));
  const auto tell = [&](const Message& message) { job.on_message(0, message, Moment(1)); };
  for (int rank = 1; rank < 9; ++rank) tell(of<RankStarted>(rank));
  RankSeen before = at_work(2);
  before.state = kNotBegun;
  tell(before);
  tell(at_work(3, RecordState::starting));
  RankSeen waiting = at_work(4);
  waiting.waits = true;
  waiting.idle_ms = 65000;
  tell(waiting);
  tell(at_work(5));
  tell(stopped(5));
  tell(at_work(6, RecordState::failed));
  tell(of<RankEnded>(7));
  RankSeen damaged = at_work(8);
  damaged.state = 99;
  tell(damaged);
  const auto lines = lines_of_view(job.table(Moment(5000)));
  ASSERT_THAT(lines, SizeIs(11));
  const std::vector<std::string> states{"not started",
                                        "started",
                                        "before hora::init",
                                        "in hora::init",
                                        "waits, idle 1 min 5 s",
                                        "stopped",
                                        "failed",
                                        "ended",
                                        "unknown"};
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    EXPECT_THAT(lines[rank + 2], HasSubstr(" " + states[rank]));
  }
}

TEST(LiveView, OfManyRanksShowsThoseThatComeLastMostOften) {
  LiveView job({{"a", 100}}, Moment(0));
  for (int rank = 0; rank < 100; ++rank) {
    RankSeen message = at_work(rank);
    message.collective = std::string(90, 'x') + std::to_string(rank) + "\u00e9\u00e9";
    message.phase = std::string(60, 'p') + "\u00e9";
    job.on_message(0, message, Moment(1));
  }
  job.on_message(0, arrivals(10, 93), Moment(2));
  const auto lines = lines_of_view(job.table(Moment(61000)));
  ASSERT_THAT(lines, SizeIs(43));
  EXPECT_THAT(lines[0], StartsWith("horarun: 1 min 1 s: step 10, 40 decisions; most often last: "));
  EXPECT_THAT(lines[2], StartsWith("   0  "));
  EXPECT_THAT(lines[41], StartsWith("  93  ")) << "it comes last most often";
  EXPECT_THAT(lines[41], HasSubstr("  " + std::string(28, 'x') + "93\u00e9\u00e9  "));
  EXPECT_THAT(lines[41], EndsWith("  " + std::string(32, 'p')));
  EXPECT_EQ(lines.back(), "and 60 more ranks");
}

TEST(LiveView, IgnoresWhatTheJobDoesNotHave) {
  LiveView job({{"a", 1}}, Moment(0));
  const std::string before = job.table(Moment(0));
  for (const int rank : {-1, 1, 1 << 30}) {
    for (const Message& message : {Message(of<RankStarted>(rank)), Message(at_work(rank)),
                                   Message(stopped(rank)), Message(of<RankEnded>(rank))}) {
      job.on_message(0, message, Moment(1));
    }
  }
  job.on_message(7, of<RankStarted>(0), Moment(1));
  EXPECT_EQ(job.table(Moment(0)), before);
  ArrivalsSeen strange = arrivals(1, -5);
  strange.decisions = 0;
  job.on_message(0, strange, Moment(1));
  job.on_message(0, arrivals(0), Moment(1));
  EXPECT_THAT(job.table(Moment(1)), Not(HasSubstr("most often")));
}

TEST(LiveView, PrintsNothingThatATerminalActsOn) {
  LiveView job({{"a", 1}}, Moment(0));
  RankSeen message = at_work(0);
  message.collective = message.phase = "x\x1b[2J\n";
  job.on_message(0, message, Moment(1));
  const std::string text = job.table(Moment(2));
  EXPECT_EQ(text.find('\x1b'), text.npos);
  EXPECT_THAT(lines_of_view(job.table(Moment(2))), SizeIs(3));
}

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
  RankOutputWriter writer(options());
  writer.write(0, "a", false, "half a li");
  writer.write(1, "a", true, "error\n");
  EXPECT_EQ(contents(output_), "");
  EXPECT_EQ(contents(error_), "error\n");
  writer.write(0, "a", false, "ne\nend");
  EXPECT_EQ(contents(output_), "half a line\n");
  writer.finish();
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
