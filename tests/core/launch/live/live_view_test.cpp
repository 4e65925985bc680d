// The words for a job that runs; and where its table stands, on a terminal of the test's own.
#include "core/launch/live/live_view.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <sstream>

#include "core/flight/flight_recorder.h"
#include "core/flight/record_reader.h"
#include "core/launch/control/system.h"
#include "core/launch/guard/guard.h"

namespace hora::launch {
namespace {

using internal::RecordState;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr TableSize kWide{.rows = 50, .columns = 200};

std::vector<std::string> lines_of(const std::string& text) {
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

RankSeen seen(int rank, RecordState state = RecordState::initialised) {
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
  message.phases = {"input and forward", "backward"};
  message.rows = {{static_cast<std::uint32_t>(3 * steps), 4.12F, 9, most_often_last, 1},
                  {static_cast<std::uint32_t>(steps), 0.1F, 0.25F, 0, 0}};
  return message;
}

TEST(LiveView, ShowsARowForEachRank) {
  LiveView job({}, {{"a", 2}, {"b", 1}}, Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, of<RankStarted>(rank), Moment(1000));
  for (const int rank : {0, 1, 2}) job.on_message(rank / 2, seen(rank), Moment(1100));
  job.on_message(0, arrivals(10), Moment(2000));
  job.on_message(0, arrivals(30), Moment(4000));
  EXPECT_THAT(
      lines_of(job.table(kWide, Moment(5000))),
      ElementsAre(
          "4 s: step 30, 10 a second, 120 decisions; most often last: rank 2 (host b), 75 %, "
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
  LiveView job({}, {{"a", 9}}, Moment(0));
  const auto tell = [&](const Message& message) { job.on_message(0, message, Moment(1)); };
  for (int rank = 1; rank < 9; ++rank) tell(of<RankStarted>(rank));
  RankSeen before = seen(2);
  before.state = kNotBegun;
  tell(before);
  tell(seen(3, RecordState::starting));
  RankSeen waiting = seen(4);
  waiting.waits = true;
  waiting.idle_ms = 65000;
  tell(waiting);
  tell(seen(5));
  tell(stopped(5));
  tell(seen(6, RecordState::failed));
  tell(of<RankEnded>(7));
  RankSeen damaged = seen(8);
  damaged.state = 99;
  tell(damaged);
  const auto lines = lines_of(job.table(kWide, Moment(5000)));
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
  EXPECT_THAT(job.line(Moment(5000)), HasSubstr("; stopped: rank 5"));
}

TEST(LiveView, OneLineSaysHowFarItIs) {
  LiveView job({}, {{"a", 3}}, Moment(0));
  EXPECT_EQ(job.line(Moment(61000)), "1 min 1 s; not started: 3 ranks");
  for (const int rank : {0, 1, 2}) job.on_message(0, seen(rank), Moment(1));
  job.on_message(0, stopped(1), Moment(1));
  job.on_message(0, arrivals(10), Moment(2000));
  EXPECT_EQ(job.line(Moment(3000)),
            "3 s: step 10, 40 decisions; most often last: rank 2 (host a), 75 %, median 4.12 ms, "
            "p99 9 ms, mostly in \"backward\"; runs: 2 ranks; stopped: rank 1");
}

TEST(LiveView, FitsIntoTheTerminal) {
  LiveView job({}, {{"a-host-of-a-very-long-name.example.org", 100}}, Moment(0));
  for (int rank = 0; rank < 100; ++rank) {
    RankSeen message = seen(rank);
    message.collective = std::string(90, 'x') + std::to_string(rank) + "\u00e9\u00e9";
    message.phase = std::string(60, 'p') + "\u00e9";
    job.on_message(0, message, Moment(1));
  }
  job.on_message(0, arrivals(10, 93), Moment(2));
  for (const TableSize size : {TableSize{24, 80}, TableSize{10, 40}, TableSize{1, 1},
                               TableSize{24, 125}, TableSize{24, 133}}) {
    const std::string table = job.table(size, Moment(5000));
    const auto lines = lines_of(table);
    EXPECT_LE(lines.size(), std::max<std::size_t>(size.rows, 5) - 1);
    for (const std::string& line : lines) {
      const auto characters = std::ranges::count_if(
          line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
      EXPECT_LE(static_cast<std::size_t>(characters), size.columns) << line;
    }
  }
  const auto lines = lines_of(job.table({24, 80}, Moment(5000)));
  ASSERT_THAT(lines, SizeIs(23));
  EXPECT_THAT(lines.back(), "and 80 more ranks");
  EXPECT_THAT(lines[21], StartsWith("  93  ")) << "it comes last most often";
  EXPECT_THAT(lines[2], StartsWith("   0  "));
}

TEST(LiveView, IgnoresWhatTheJobDoesNotHave) {
  LiveView job({}, {{"a", 1}}, Moment(0));
  const std::string before = job.table(kWide, Moment(0));
  for (const int rank : {-1, 1, 1 << 30}) {
    for (const Message& message : {Message(of<RankStarted>(rank)), Message(seen(rank)),
                                   Message(stopped(rank)), Message(of<RankEnded>(rank))}) {
      job.on_message(0, message, Moment(1));
    }
  }
  job.on_message(7, of<RankStarted>(0), Moment(1));
  EXPECT_EQ(job.table(kWide, Moment(0)), before);
  ArrivalsSeen strange = arrivals(1, -5);
  strange.decisions = 0;
  strange.phases.clear();
  job.on_message(0, strange, Moment(1));
  job.on_message(0, arrivals(0), Moment(1));
  EXPECT_THAT(job.line(Moment(1)), Not(HasSubstr("most often")));
}

TEST(LiveView, PrintsNothingThatATerminalActsOn) {
  LiveView job({}, {{"a", 1}}, Moment(0));
  RankSeen message = seen(0);
  message.collective = message.phase = "x\x1b[2J\n";
  job.on_message(0, message, Moment(1));
  ArrivalsSeen late = arrivals(1, 0);
  late.phases = {"\x1b", "\x1b\n"};
  job.on_message(0, late, Moment(1));
  const std::string text = job.table(kWide, Moment(2)) + job.line(Moment(2));
  EXPECT_EQ(text.find('\x1b'), text.npos);
  EXPECT_THAT(lines_of(job.table(kWide, Moment(2))), SizeIs(3));
}

std::string read_from(int descriptor) {
  std::string text;
  char bytes[4096];
  pollfd entry{descriptor, POLLIN, 0};
  while (::poll(&entry, 1, 20) > 0) {
    const ssize_t count = ::read(descriptor, bytes, sizeof bytes);
    if (count <= 0) break;
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

class OnTerminal : public testing::Test {
 protected:
  void SetUp() override {
    screen_.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    ASSERT_TRUE(screen_);
    ASSERT_EQ(::grantpt(screen_.get()), 0);
    ASSERT_EQ(::unlockpt(screen_.get()), 0);
    terminal_.reset(::open(::ptsname(screen_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    ASSERT_TRUE(terminal_);
    termios settings{};
    ASSERT_EQ(::tcgetattr(terminal_.get(), &settings), 0);
    settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    ASSERT_EQ(::tcsetattr(terminal_.get(), TCSANOW, &settings), 0);
    set_size(24, 80);
  }
  void set_size(unsigned short rows, unsigned short columns) const {
    winsize size{};
    size.ws_row = rows;
    size.ws_col = columns;
    ASSERT_EQ(::ioctl(terminal_.get(), TIOCSWINSZ, &size), 0);
  }
  LiveOptions options() const {
    return {
        .interval = std::chrono::seconds(1), .on_terminal = true, .descriptor = terminal_.get()};
  }
  std::string written() const { return read_from(screen_.get()); }

  UniqueFd screen_, terminal_;
};

const std::vector<JobHost> kHosts{{"a", 2}};

TEST_F(OnTerminal, TheTableIsDrawnAnewInItsPlace) {
  LiveView view(options(), kHosts, Moment(0));
  view.on_time(false, Moment(100));
  const std::string first = written();
  EXPECT_THAT(first, StartsWith("0 s\nrank  host"));
  EXPECT_EQ(std::ranges::count(first, '\n'), 4);
  view.on_time(false, Moment(900));
  EXPECT_THAT(written(), IsEmpty()) << "its second is not over";
  view.on_time(false, Moment(1000));
  EXPECT_THAT(written(), StartsWith("\r\x1b[4A\x1b[J1 s\n"));
}

TEST_F(OnTerminal, TheTableMakesWayForOutputAndIsAsLargeAsTheTerminal) {
  LiveView view(options(), kHosts, Moment(0));
  view.erase();
  EXPECT_THAT(written(), IsEmpty()) << "there is none yet";
  view.on_time(false, Moment(100));
  written();
  view.erase();
  EXPECT_EQ(written(), "\r\x1b[4A\x1b[J");
  view.erase();
  EXPECT_THAT(written(), IsEmpty());
  view.on_time(true, Moment(200));
  EXPECT_THAT(written(), StartsWith("\n0 s\n")) << "below a line that has no end";
  LiveView large(options(), {{"a", 100}}, Moment(0));
  set_size(12, 30);
  large.on_time(false, Moment(100));
  const std::string table = written();
  EXPECT_EQ(std::ranges::count(table, '\n'), 11);
  EXPECT_THAT(table, EndsWith("and 92 more ranks\n"));
}

TEST(WithoutTerminal, ALineIsWrittenAtEachInterval) {
  const Pipe pipe = make_pipe();
  LiveView view({.interval = std::chrono::seconds(10), .descriptor = pipe.write.get()}, kHosts,
                Moment(0));
  view.on_time(false, Moment(9900));
  EXPECT_THAT(read_from(pipe.read.get()), IsEmpty());
  view.on_time(false, Moment(10000));
  EXPECT_EQ(read_from(pipe.read.get()), "horarun: 10 s; not started: 2 ranks\n");
  view.erase();
  view.on_time(true, Moment(19900));
  EXPECT_THAT(read_from(pipe.read.get()), IsEmpty());
  view.on_time(true, Moment(20000));
  EXPECT_THAT(read_from(pipe.read.get()), HasSubstr("20 s"));
}

}  // namespace
}  // namespace hora::launch
