#include "examples/vision/logs/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

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
const std::string live_line =
    "epoch 2/4  5/110  loss 1.235  top-1 43.8%  86 img/s  data 5%  comm 2%  1:03 left";
const std::string plain_line =
    "Epoch: [2][  5/110]  Time 0.250 (0.250)  Data 0.013 (0.013)  Comm 0.005 (0.005)  "
    "Loss 1.2346 (1.2346)  Acc@1  43.75 ( 43.75)  86 images/s  1:03 left";

StepSums means_of(const TrainingStep& one) {
  StepSums means;
  means.add(one);
  return means;
}

Progress live(std::ostream& out, std::size_t columns) {
  return {&out, {.style = ProgressStyle::live, .columns = [columns] { return columns; }}};
}

TEST(LiveText, ShowsAllOfIt) {
  EXPECT_EQ(to_live_text(kFifthStep, means_of(kFifthStep), 200), live_line);
}

TEST(LiveText, LeavesOutWhatIsNotMeasured) {
  TrainingStep other = kFifthStep;
  other.top1.reset();
  other.seconds = 0;
  EXPECT_EQ(to_live_text(other, means_of(other), 200),
            "epoch 2/4  5/110  loss 1.235  86 img/s  1:03 left");
}

TEST(LiveText, KeepsToTheWidth) {
  const StepSums means = means_of(kFifthStep);
  for (std::size_t columns = 1; columns <= live_line.size(); ++columns) {
    EXPECT_LE(to_live_text(kFifthStep, means, columns).size(), columns);
  }
  EXPECT_EQ(to_live_text(kFifthStep, means, live_line.size()), live_line);
  EXPECT_EQ(to_live_text(kFifthStep, means, live_line.size() - 1),
            "epoch 2/4  5/110  loss 1.235  top-1 43.8%  86 img/s  data 5%  1:03 left");
  EXPECT_EQ(to_live_text(kFifthStep, means, 55),
            "epoch 2/4  5/110  loss 1.235  86 img/s  1:03 left");
  EXPECT_EQ(to_live_text(kFifthStep, means, 22), "epoch 2/4  1:03 left");
  EXPECT_EQ(to_live_text(kFifthStep, means, 7), "epoch 2");
}

TEST(PlainText, HasValuesAndAverages) {
  TrainingStep before = kFifthStep;
  before.step = 4;
  before.seconds = 0.75;
  before.loss = 3.23456;
  before.top1 = 6.25;
  before.top5 = 30;
  StepSums means = means_of(before);
  TrainingStep after = kFifthStep;
  after.top5 = 70;
  means.add(after);
  EXPECT_EQ(to_plain_text(after, means),
            "Epoch: [2][  5/110]  Time 0.250 (0.500)  Data 0.013 (0.013)  Comm 0.005 (0.005)  "
            "Loss 1.2346 (2.2346)  Acc@1  43.75 ( 25.00)  Acc@5  70.00 ( 50.00)  "
            "86 images/s  1:03 left");
}

TEST(Text, OfSeveralRanksSaysWhose) {
  TrainingStep step = kFifthStep;
  step.ranks = 2;
  EXPECT_EQ(to_live_text(step, means_of(step), 200),
            "epoch 2/4  5/110  rank 0: loss 1.235  top-1 43.8%  all: 86 img/s  data 5%  comm 2%  "
            "1:03 left");
  const std::string plain = to_plain_text(step, means_of(step));
  EXPECT_THAT(plain, testing::HasSubstr("]  rank 0: Time 0.250"));
  EXPECT_THAT(plain, testing::HasSubstr(")  all: 86 images/s  1:03 left"));
}

TEST(ToMinutes, RoundsToSeconds) {
  EXPECT_EQ(to_minutes(0), "0:00");
  EXPECT_EQ(to_minutes(6.6), "0:07");
  EXPECT_EQ(to_minutes(754), "12:34");
  EXPECT_EQ(to_minutes(3 * 3600 + 59), "3:00:59");
  EXPECT_EQ(to_minutes(-1), "0:00");
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
  std::istringstream lines(out.str());
  std::string line;
  std::vector<std::string> losses;
  while (std::getline(lines, line)) {
    losses.push_back(line.substr(0, 19) +
                     line.substr(line.find("Loss"), line.find("  Acc") - line.find("Loss")));
  }
  EXPECT_THAT(losses, testing::ElementsAre("Epoch: [1][  1/110]Loss 100.0000 (100.0000)",
                                           "Epoch: [1][ 10/110]Loss 100.0000 (100.0000)",
                                           "Epoch: [1][ 20/110]Loss 100.0000 (100.0000)",
                                           "Epoch: [2][  1/110]Loss 1.0000 (1.0000)",
                                           "Epoch: [2][ 10/110]Loss 10.0000 (5.5000)",
                                           "Epoch: [2][ 20/110]Loss 20.0000 (10.5000)"));
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

TEST(Progress, OtherRanksAreSilent) {
  Progress progress(nullptr, {.style = ProgressStyle::live});
  progress.update(kFifthStep, Progress::Time{});
  progress.line("nothing");
}

TEST(ChooseStyle, TakesWhatIsAskedFor) {
  EXPECT_EQ(choose_style(ProgressStyle::live, -1), ProgressStyle::live);
  EXPECT_EQ(choose_style(ProgressStyle::plain, -1), ProgressStyle::plain);
}

TEST(ChooseStyle, LiveOnlyOnATerminalOfKnownWidth) {
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
