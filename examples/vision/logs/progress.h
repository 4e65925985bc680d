/// What a person sees while training goes on.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "examples/vision/logs/training_step.h"

namespace vision {

enum class ProgressStyle {
  automatic,  ///< live where the output is a terminal of known width
  live,       ///< one line that is written over and over
  plain,      ///< a line now and then
};

/// The mean of what was added.
class RunningMean {
 public:
  void add(double value) {
    sum_ += value;
    ++count_;
  }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

 private:
  double sum_ = 0;
  std::size_t count_ = 0;
};

/// Of an epoch's steps so far.
struct EpochMeans {
  RunningMean seconds;
  RunningMean data_seconds;
  RunningMean exposed_seconds;
  RunningMean loss;
  RunningMean top1;
  RunningMean top5;

  void add(const TrainingStep& step);
};

/// "epoch 2/4  5/11  rank 0: loss 1.235  top-1 43.8%  all: 86 img/s  data 3%  comm 2%  1:03 left".
/// One rank alone is not named. The loss is the step's; top-1 and the shares of the time in which
/// rank 0 waited for data and for averages (exposed communication) are of the epoch. In fewer
/// columns the least important go first: comm, data, top-1, img/s, loss, step; what is left is cut.
std::string to_live_text(const TrainingStep& step, const EpochMeans& means, std::size_t columns);

/// As PyTorch's ImageNet example has it, value and the epoch's average, epochs and steps from 1:
/// "Epoch: [2][  5/110]  rank 0: Time 0.123 ( 0.130)  Data 0.001 ( 0.002)  Comm 0.003 ( 0.004)
///  Loss 1.2346 (1.4000)  Acc@1  43.75 ( 40.62)  all: 86 images/s  1:03 left", in one line.
std::string to_plain_text(const TrainingStep& step, const EpochMeans& means);

/// "0:07", "12:34" or "3:00:00".
std::string to_minutes(double seconds);

/// live or plain. Under horarun a rank has a pipe, and horarun's terminal in HORARUN_COLUMNS.
/// mpirun gives it a terminal of its own, without a width, whatever mpirun's output goes to; so
/// that one counts as no terminal.
ProgressStyle choose_style(ProgressStyle wanted, int file_descriptor);

/// Of the terminal; 80 where there is none, or one of unknown width.
std::size_t terminal_columns(int file_descriptor);

struct ProgressOptions {
  ProgressStyle style = ProgressStyle::plain;  ///< live or plain
  /// Plain lines come with the first and every so many steps of an epoch; 0: every ten seconds, the
  /// first after ten seconds, so that short runs print results only.
  std::size_t every = 0;
  /// Asked before each live line, for terminals change. Empty: 80.
  std::function<std::size_t()> columns = {};
};

/// Writes lines and progress, or nothing where it has no stream (all ranks but 0).
/// Thread rule: one thread.
class Progress {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// `out` null: silent.
  Progress(std::ostream* out, ProgressOptions options) : out_(out), options_(std::move(options)) {}

  void line(const std::string& text);
  /// To be called after every step, for the averages. Live lines come at most five times a second.
  void update(const TrainingStep& step, Time now);

 private:
  bool due(const TrainingStep& step, Time now);

  std::ostream* out_;
  ProgressOptions options_;
  int epoch_ = 0;
  EpochMeans means_;
  std::optional<Time> last_;
  bool live_line_open_ = false;
};

}  // namespace vision
