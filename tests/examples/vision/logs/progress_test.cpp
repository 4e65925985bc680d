// Lines of progress: progress.txt.
#include "examples/vision/logs/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "tests/support/golden.h"

namespace vision {
namespace {

using std::chrono::milliseconds;

const TrainingStep kFifthStep{.epoch = 2,
                              .epochs = 4,
                              .step = 5,
                              .steps = 110,
                              .loss = 1.23456,
                              .top1 = 43.75,
                              .learning_rate = 0.1,
                              .images_per_second = 86.4,
                              .seconds = 0.25,
                              .data_seconds = 0.0125,
                              .exposed_seconds = 0.005,
                              .seconds_left = 63};
StepSums means_of(const TrainingStep& one) {
  StepSums means;
  means.add(one);
  return means;
}
const std::string live_line = to_live_text(kFifthStep, means_of(kFifthStep), 200);
const std::string plain_line = to_plain_text(kFifthStep, means_of(kFifthStep));

Progress live(std::ostream& out, std::size_t columns) {
  return {&out, {.style = ProgressStyle::live, .columns = [columns] { return columns; }}};
}

TEST(Text, OfProgressIsAsPeopleReadIt) {
  TrainingStep several = kFifthStep;
  several.ranks = 2;
  TrainingStep unmeasured = kFifthStep;
  unmeasured.top1.reset();
  unmeasured.seconds = 0;
  std::string text;
  for (const TrainingStep& step : {kFifthStep, several, unmeasured}) {
    text += to_live_text(step, means_of(step), 200) + "\n";
    text += to_plain_text(step, means_of(step)) + "\n";
  }
  // Less and less of it as the width falls.
  for (std::size_t columns = live_line.size(); columns > 0; --columns) {
    const std::string line = to_live_text(kFifthStep, means_of(kFifthStep), columns);
    EXPECT_LE(line.size(), columns);
    text += line + "\n";
  }
  TrainingStep before = kFifthStep;
  before.seconds = 0.75;
  before.loss = 3.23456;
  before.top1 = 6.25;
  before.top5 = 30;
  StepSums means = means_of(before);
  TrainingStep after = kFifthStep;
  after.top5 = 70;
  means.add(after);
  text += to_plain_text(after, means) + "\n";
  for (const double seconds : {0.0, 6.6, 754.0, 3600.0, 3 * 3600 + 59.0, -1.0}) {
    text += to_minutes(seconds) + "\n";
  }
  hora::internal::test::expect_golden("examples/vision/logs/progress.txt", "text", text);
}

TEST(Progress, LiveIsOneLineThatIsWrittenOver) {
  std::ostringstream out;
  Progress progress = live(out, 200);
  const Progress::Time start{};
  progress.update(kFifthStep, start);
  progress.update(kFifthStep, start + milliseconds(199));  // too soon
  progress.update(kFifthStep, start + milliseconds(200));
  progress.line("done");
  progress.line("more");
  EXPECT_EQ(out.str(), "\r" + live_line + "\x1b[K\r" + live_line + "\x1b[K\rdone\x1b[K\nmore\n");
}

TEST(Progress, LiveLeavesTheTerminalsLastColumnFree) {
  std::ostringstream out;
  live(out, live_line.size() + 1).update(kFifthStep, {});
  EXPECT_EQ(out.str(), "\r" + live_line + "\x1b[K");
  out.str("");
  live(out, live_line.size()).update(kFifthStep, {});
  EXPECT_LT(out.str().size(), live_line.size());
  out.str("");
  live(out, 0).update(kFifthStep, {});
  EXPECT_EQ(out.str(), "\re\x1b[K");
}

TEST(Progress, AveragesAreOfTheEpochAndOfStepsNotShown) {
  std::ostringstream out;
  Progress progress(&out, {.style = ProgressStyle::plain, .every = 10});
  TrainingStep one = kFifthStep;
  for (one.epoch = 1; one.epoch <= 2; ++one.epoch) {
    for (one.step = 1; one.step <= 20; ++one.step) {
      one.loss = one.epoch == 1 ? 100 : static_cast<double>(one.step);
      progress.update(one, {});
    }
  }
  hora::internal::test::expect_golden("examples/vision/logs/progress.txt", "averages", out.str());
}

TEST(Progress, PlainIsALineEveryTenSeconds) {
  std::ostringstream out;
  Progress progress(&out, {.style = ProgressStyle::plain});
  const Progress::Time start{};
  progress.update(kFifthStep, start);
  progress.update(kFifthStep, start + milliseconds(9'999));
  EXPECT_EQ(out.str(), "");
  progress.update(kFifthStep, start + milliseconds(10'000));
  progress.update(kFifthStep, start + milliseconds(10'001));
  progress.line("done");
  EXPECT_EQ(out.str(), plain_line + "\ndone\n");
}

TEST(ChooseStyle, LiveOnlyOnATerminalOfKnownWidth) {
  for (const ProgressStyle asked : {ProgressStyle::live, ProgressStyle::plain}) {
    EXPECT_EQ(choose_style(asked, -1), asked);
  }
  EXPECT_EQ(choose_style(ProgressStyle::automatic, -1), ProgressStyle::plain);
  EXPECT_EQ(terminal_columns(-1), 80U);
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int inner = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(inner, 0);
  EXPECT_EQ(choose_style(ProgressStyle::automatic, inner), ProgressStyle::plain) << "as mpirun's";
  const winsize size{.ws_row = 25, .ws_col = 61, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(choose_style(ProgressStyle::automatic, inner), ProgressStyle::live);
  EXPECT_EQ(terminal_columns(inner), 61U);
  close(inner);
  close(terminal);
}

TEST(ChooseStyle, LiveOnHorarunsTerminal) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const int file = open("/dev/null", O_WRONLY);
  EXPECT_EQ(choose_style(ProgressStyle::automatic, pipe_ends[1]), ProgressStyle::plain);
  setenv("HORARUN_COLUMNS", "61", 1);
  EXPECT_EQ(choose_style(ProgressStyle::automatic, pipe_ends[1]), ProgressStyle::live);
  EXPECT_EQ(terminal_columns(pipe_ends[1]), 61U);
  EXPECT_EQ(choose_style(ProgressStyle::automatic, file), ProgressStyle::plain);
  unsetenv("HORARUN_COLUMNS");
  for (const int each : {pipe_ends[0], pipe_ends[1], file}) close(each);
}

}  // namespace
}  // namespace vision
