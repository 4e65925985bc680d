/// The course of a training, for programs to read: as JSON, and in TensorBoard's files.
///
/// The JSON file has one object a line, each with a "kind":
///
///     run     first: "ranks", "nodes", "batch" (of a rank), "epochs", "steps" (of an epoch),
///             "data", "model"; of a resumed run another one, behind the lines that are there, with
///             "resumed_epoch" (epochs done) and "resumed_step" (done of the one after these).
///             Lines before it that tell of later steps are of a course that was given up.
///     step    "epoch", "step" (the last of those it stands for), and means over these: "loss",
///             "top1" and "top5" (percent, where known), "learning_rate", "images_per_second",
///             "seconds", "data_seconds", "exposed_seconds"; "gpu_bytes" (the largest) with CUDA
///     epoch   "epoch", and of the whole epoch: "loss" (mean over ranks; null where no step
///     counted), "top1" and "top5" (of
///             validation), "steps", "images_per_second", "seconds", "data_seconds",
///             "exposed_seconds" (sums, validation left out), "validation_seconds"
///
/// A number that is not finite is null. examples/plot.py draws these files.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "examples/vision/logs/event_writer.h"
#include "examples/vision/logs/log_file.h"
#include "examples/vision/logs/log_targets.h"
#include "examples/vision/logs/training_step.h"

namespace vision {

/// Where a run goes on: behind so many epochs, and steps of the one after them.
struct ResumePoint {
  int epochs = 0;
  std::size_t steps = 0;
};

struct TrainingRun {
  int ranks = 1;
  int nodes = 1;
  std::size_t batch = 1;  ///< images of one rank in one step
  int epochs = 1;
  std::size_t steps = 1;  ///< of an epoch
  std::string data = {};
  std::string model = {};
  std::optional<ResumePoint> resumed = {};
};

/// What TrainingLog cannot add up from the steps.
struct EpochResult {
  std::optional<double> loss = {};  ///< of training, mean over ranks; none: no step counted
  std::optional<double> top1 = {};  ///< of validation, percent
  std::optional<double> top5 = {};
  double validation_seconds = 0;
};

/// Thread rule: one thread. Every call may throw std::system_error with the path of a file that
/// cannot be written.
class TrainingLog {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Opens the files; writes nothing where `targets` names none.
  explicit TrainingLog(const LogTargets& targets);

  void run(const TrainingRun& run);
  /// After every step.
  void step(const TrainingStep& step, Time now);
  /// After an epoch's last step and its validation.
  void epoch(const EpochResult& result, Time now);

 private:
  /// Of the steps added since the begin of an entry or of an epoch.
  struct Sums {
    std::size_t steps = 0;
    double seconds = 0;
    double data_seconds = 0;
    double exposed_seconds = 0;
    double images_per_second = 0;
    double loss = 0;
    double learning_rate = 0;
    std::optional<double> top1 = {};
    std::optional<double> top5 = {};
    std::optional<double> gpu_bytes = {};  ///< the largest

    void add(const TrainingStep& step);
  };

  void write_step(const TrainingStep& step, Time now);

  std::optional<LogFile> json_;
  std::optional<EventWriter> events_;
  std::size_t every_;
  std::int64_t steps_before_ = 0;  ///< of epochs before
  std::int64_t step_ = 0;          ///< of this epoch
  int epoch_ = 0;
  std::size_t images_a_step_ = 0;
  Sums entry_;
  Sums whole_;
};

}  // namespace vision
