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
///             counted), "top1" and "top5" (of validation), "steps", "images_per_second",
///             "seconds", "data_seconds", "exposed_seconds" (sums, validation left out),
///             "validation_seconds"
///
/// A number that is not finite is null. examples/plot.py draws these files.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "examples/vision/logs/progress.h"

namespace vision {

/// A file that grows while the program runs. Errors are std::system_error with the path. Thread
/// rule: one thread.
class LogFile {
 public:
  /// `continued`: goes on behind the file's last whole line, and cuts off what is behind that. Else
  /// the file is replaced.
  explicit LogFile(std::filesystem::path path, bool continued = false);

  /// Bytes reach the file with the next flush() or before.
  void append(std::string_view bytes);
  /// To be called at the end; the destructor flushes, too, and is silent where it cannot.
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void check(const char* what) const;

  std::filesystem::path path_;
  std::ofstream file_;
};

/// Scalars in a file that TensorBoard reads. Thread rule: one thread. Errors as LogFile's.
class EventWriter {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Makes `folder` with the folders above it, and in it
  /// events.out.tfevents.<seconds since 1970>.<host>.<process id>.
  explicit EventWriter(const std::filesystem::path& folder,
                       Time now = std::chrono::system_clock::now());

  /// `tag` names the curve; before a "/" in it is the group of curves that TensorBoard shows side
  /// by side. The value is kept in float32. What the file holds is then at most ten seconds old.
  void add(const std::string& tag, std::int64_t step, double value, Time now);
  void flush() { file_.flush(); }

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  LogFile file_;
  Time flushed_;
};

/// Where the course of a training is written to; empty: nowhere.
struct LogTargets {
  std::string json = {};         ///< file, replaced where it exists, unless `append`
  std::string tensorboard = {};  ///< folder of one run
  bool append = false;           ///< what the JSON file holds stays, but for half a last line
  std::size_t every = 10;  ///< so many steps become one entry, at least 1; an epoch's last ones too
};

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

/// Results that TrainingLog cannot add up from the steps.
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
  std::optional<LogFile> json_;
  std::optional<EventWriter> events_;
  std::size_t every_;
  std::int64_t steps_before_ = 0;  ///< of epochs before
  std::int64_t step_ = 0;          ///< of this epoch
  int epoch_ = 0;
  std::size_t images_a_step_ = 0;
  StepSums entry_;
  StepSums whole_;
};

}  // namespace vision
