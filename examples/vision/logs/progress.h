/// Measurements of a training's steps, and what a person sees of them while training goes on.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

namespace vision {

/// Times are rank 0's, in seconds; losses and accuracies are of rank 0's batch.
struct TrainingStep {
  int epoch = 1;  ///< from 1
  int epochs = 1;
  int ranks = 1;
  std::size_t step = 1;  ///< of this epoch, from 1
  std::size_t steps = 1;
  double loss = 0;
  std::optional<double> top1 = {};  ///< percent
  std::optional<double> top5 = {};
  double learning_rate = 0;
  double images_per_second = 0;  ///< over all ranks
  double seconds = 0;            ///< of the whole step
  double data_seconds = 0;       ///< of these, waiting for data
  double exposed_seconds = 0;    ///< of these, waiting for averages that backward did not hide
  double seconds_left = 0;       ///< of all epochs
  std::optional<double> gpu_bytes = {};  ///< most memory that tensors on rank 0's GPU have taken
};

/// Steps of an epoch so far, or since the last entry of a log.
class StepSums {
 public:
  void add(const TrainingStep& step);

  std::size_t steps() const { return steps_; }
  /// Sum of all steps; `gpu_bytes` is the largest.
  const TrainingStep& sum() const { return sum_; }
  /// 0 without a step.
  double mean(double TrainingStep::*value) const;
  /// None where no step has it.
  std::optional<double> mean(std::optional<double> TrainingStep::*value) const;

 private:
  std::size_t steps_ = 0;
  TrainingStep sum_;
};

enum class ProgressStyle {
  automatic,  ///< live where the output is a terminal of known width
  live,       ///< one line that is written over and over
  plain,      ///< a line now and then
};

/// "epoch 2/4  5/11  rank 0: loss 1.235  top-1 43.8%  all: 86 img/s  data 3%  comm 2%  1:03 left".
/// The loss is the step's; the rest is the epoch's: data and comm are rank 0's waiting for data and
/// for averages. In fewer columns comm, data, top-1, img/s, loss and step go, in this order.
std::string to_live_text(const TrainingStep& step, const StepSums& epoch, std::size_t columns);

/// As PyTorch's ImageNet example has it, value and the epoch's average, epochs and steps from 1:
/// "Epoch: [2][  5/110]  rank 0: Time 0.123 ( 0.130)  Data 0.001 ( 0.002)  Comm 0.003 ( 0.004)
///  Loss 1.2346 (1.4000)  Acc@1  43.75 ( 40.62)  all: 86 images/s  1:03 left", in one line.
std::string to_plain_text(const TrainingStep& step, const StepSums& epoch);

/// "0:07", "12:34" or "3:00:00".
std::string to_minutes(double seconds);

/// Returns live or plain. A pipe under horarun counts as horarun's terminal; a terminal without a
/// width, such as mpirun gives a rank, counts as none.
ProgressStyle choose_style(ProgressStyle wanted, int file_descriptor);

/// Width of the terminal; 80 where there is none, or one of unknown width.
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
  StepSums sums_;
  std::optional<Time> last_;
  bool live_line_open_ = false;
};

}  // namespace vision
