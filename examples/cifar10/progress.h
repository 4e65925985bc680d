/// What a person sees while training goes on.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <ostream>
#include <string>

namespace cifar10 {

enum class ProgressStyle {
  automatic,  ///< live where the output is a terminal of known width
  live,       ///< one line that is written over and over
  plain,      ///< a line now and then
};

struct ProgressState {
  int epoch;  ///< from 1
  int epochs;
  std::size_t step;  ///< steps done in this epoch
  std::size_t steps;
  double loss;               ///< of rank 0's batch
  double images_per_second;  ///< over all ranks
  double seconds_left;       ///< of all epochs
};

/// "epoch 2/4  step 5/11  loss 1.234  86 images/s  1:03 left"
std::string to_text(const ProgressState& state);
/// "0:07", "12:34" or "3:00:00".
std::string to_minutes(double seconds);

/// live or plain. Under horarun a rank has a pipe. mpirun gives it a terminal of its own, without a
/// width, whatever mpirun's output goes to; so that one counts as no terminal.
ProgressStyle choose_style(ProgressStyle wanted, int file_descriptor);

/// Writes lines and progress, or nothing where it has no stream (all ranks but 0).
/// Thread rule: one thread.
class Progress {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// `out` null: silent. `style` is live or plain.
  Progress(std::ostream* out, ProgressStyle style) : out_(out), style_(style) {}

  void line(const std::string& text);
  /// Shown at most five times a second where live, every ten seconds where plain.
  void update(const ProgressState& state, Time now);

 private:
  std::ostream* out_;
  ProgressStyle style_;
  std::optional<Time> last_;
  bool live_line_open_ = false;
};

}  // namespace cifar10
