// Where the table stands, on a terminal of the test's own.
#include "core/launch/live/live_view.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

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

TEST_F(OnTerminal, TheTableMakesWayForOutput) {
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
}

TEST_F(OnTerminal, TheTableIsAsLargeAsTheTerminal) {
  LiveView view(options(), {{"a", 100}}, Moment(0));
  set_size(12, 30);
  view.on_time(false, Moment(100));
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
