#include "examples/cifar10/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace cifar10 {
namespace {

using std::chrono::milliseconds;

const ProgressState state{.epoch = 2,
                          .epochs = 4,
                          .step = 5,
                          .steps = 11,
                          .loss = 1.23456,
                          .images_per_second = 86.4,
                          .seconds_left = 63};
const std::string shown = "epoch 2/4  step 5/11  loss 1.235  86 images/s  1:03 left";

TEST(ToText, ShowsAllOfIt) {
  EXPECT_EQ(to_text(state), shown);
}

TEST(ToMinutes, RoundsToSeconds) {
  EXPECT_EQ(to_minutes(0), "0:00");
  EXPECT_EQ(to_minutes(6.6), "0:07");
  EXPECT_EQ(to_minutes(754), "12:34");
  EXPECT_EQ(to_minutes(3 * 3600 + 59), "3:00:59");
  EXPECT_EQ(to_minutes(-1), "0:00");
}

TEST(Progress, LiveIsOneLineThatIsErasedBeforeTheNext) {
  std::ostringstream out;
  Progress progress(&out, ProgressStyle::live);
  const Progress::Time start{};
  progress.update(state, start);
  progress.update(state, start + milliseconds(199));  // too soon
  progress.update(state, start + milliseconds(200));
  progress.line("done");
  progress.line("more");
  EXPECT_EQ(out.str(), "\r\x1b[K" + shown + "\r\x1b[K" + shown + "\r\x1b[Kdone\nmore\n");
}

TEST(Progress, PlainIsALineEveryTenSeconds) {
  std::ostringstream out;
  Progress progress(&out, ProgressStyle::plain);
  const Progress::Time start{};
  progress.update(state, start);
  progress.update(state, start + milliseconds(9'999));
  EXPECT_EQ(out.str(), "");
  progress.update(state, start + milliseconds(10'000));
  progress.update(state, start + milliseconds(10'001));
  progress.line("done");
  EXPECT_EQ(out.str(), shown + "\ndone\n");
}

TEST(Progress, OtherRanksAreSilent) {
  Progress progress(nullptr, ProgressStyle::live);
  progress.update(state, Progress::Time{});
  progress.line("nothing");
}

TEST(ChooseStyle, TakesWhatIsAskedFor) {
  EXPECT_EQ(choose_style(ProgressStyle::live, -1), ProgressStyle::live);
  EXPECT_EQ(choose_style(ProgressStyle::plain, -1), ProgressStyle::plain);
}

TEST(ChooseStyle, LiveOnlyOnATerminalOfKnownWidth) {
  EXPECT_EQ(choose_style(ProgressStyle::automatic, -1), ProgressStyle::plain);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int inner = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(inner, 0);
  EXPECT_EQ(choose_style(ProgressStyle::automatic, inner), ProgressStyle::plain) << "as mpirun's";
  const winsize size{.ws_row = 25, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(choose_style(ProgressStyle::automatic, inner), ProgressStyle::live);
  close(inner);
  close(terminal);
}

}  // namespace
}  // namespace cifar10
