/// What of a training is saved after each epoch, and resumed.
#pragma once

#include <hora/context.h>
#include <hora/torch/checkpoint.h>

#include <optional>
#include <string>

#include "examples/vision/models/model.h"
#include "examples/vision/optim/weight_average.h"

namespace vision {

struct TrainingStateOptions {
  std::string folder;  ///< for checkpoints; empty: none are written
  std::string
      resume;  ///< empty: from the beginning; "auto": `folder`, where it has one; or a folder
};

/// Model, optimizer, scale of the loss, averaged weights, a hook's memory, random states, epochs
/// done and the best accuracy, in a hora::Checkpoint. Without options it does nothing. Thread rule
/// and errors: as hora::Checkpoint.
class TrainingState {
 public:
  /// What is given must outlive it; `average` and `hook` may be null. Collective.
  TrainingState(const hora::Context& world, const TrainingStateOptions& options, Classifier& model,
                hora::DistributedOptimizer& optimizer, hora::GradScaler& scaler,
                WeightAverage* average, hora::GradientHook* hook);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// Loads what the options name; returns the folder, or "" where the training begins anew.
  /// Collective. Throws std::runtime_error where a named folder has no checkpoint.
  std::string resume();
  /// After an epoch, of which `accuracy` (percent) is the validation's, if there was one; written
  /// in the background. Collective.
  void epoch_done(std::optional<double> accuracy);
  /// Returns when the last checkpoint is on the disk. Collective.
  void wait();

  int epochs() const { return epochs_; }                   ///< done
  double best_accuracy() const { return best_accuracy_; }  ///< percent; 0 before the first epoch

 private:
  const TrainingStateOptions options_;
  std::optional<hora::Checkpoint> checkpoint_;
  WeightAverage* const average_;
  std::int64_t average_steps_ = 0;
  int epochs_ = 0;
  double best_accuracy_ = 0;
};

}  // namespace vision
