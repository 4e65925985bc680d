/// What of a training is saved, and resumed: by any number of ranks, in the middle of an epoch too.
#pragma once

#include <hora/context.h>
#include <hora/torch/checkpoint.h>
#include <hora/torch/distributed_sampler.h>
#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "examples/vision/train/training_progress.h"

namespace vision {

struct TrainingStateOptions {
  std::string folder = {};  ///< for checkpoints; empty: none are written
  /// Empty: from the beginning; "auto": `folder`, where it has one; a folder; or FOLDER/last,
  /// FOLDER/previous, FOLDER/best, where one with this name is a checkpoint: it alone.
  std::string resume = {};
  bool per_node = false;         ///< hora::CheckpointOptions::per_node
  std::int64_t every_steps = 0;  ///< saves after so many steps, besides after each epoch; 0: not
};

/// Throws std::runtime_error where `folder` has checkpoints on this host, and `resume` does not go
/// on from them: the new training would replace them, the best one too.
void check_unused(const TrainingStateOptions& options);

/// What is saved beside the progress and the random states; all must outlive the TrainingState.
struct TrainingParts {
  torch::nn::Module& model;
  hora::DistributedOptimizer& optimizer;
  hora::GradScaler& scaler;
  /// The training images'. Says what an epoch consists of; its position is not looked at.
  const hora::DistributedSampler& sampler;
  hora::GradientHook* hook = nullptr;  ///< the optimizer's; null: it has none
};

/// The training's progress, kept up to date by the trainer, and its checkpoints. Without folders
/// progress is kept, and nothing is saved.
///
/// A checkpoint is that of a layout of ranks in its random states and its hook's memory; with the
/// same layout a training on CPUs goes on to the same bits. All else, such as the place in the
/// epoch, is the training's.
///
/// Collective, but for what is const. Thread rule and errors: as hora::Checkpoint.
class TrainingState {
 public:
  TrainingState(const hora::Context& world, const TrainingStateOptions& options,
                const TrainingParts& parts);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// Loads what the options name; returns where it lies, or "" where the training begins anew.
  /// Before the first step. What the checkpoint lacks begins as it does in a new training, with a
  /// warning. Throws CommonError where a named folder
  /// has no checkpoint, where none is complete and undamaged, and where the checkpoint's place in
  /// its epoch is one in other data or of another seed.
  std::string resume();

  /// After a step of `images` images of this rank, whose mean loss is given, and which has led to
  /// `reached` (EpochSteps::after()). Saves in the background where `every_steps` says so.
  void step_done(const hora::SamplerPosition& reached, double loss, std::int64_t images);
  /// After an epoch and its validation, if there was one, which gave this accuracy (percent). Saves
  /// in the background.
  void epoch_done(std::optional<double> accuracy);
  /// The training ends before its time: saves where that was not just done, and returns when it is
  /// on the disk; false where there is no folder.
  bool interrupted();
  /// Returns when the last checkpoint is on the disk.
  void wait();

  const TrainingProgress& progress() const { return progress_; }
  int epochs() const { return static_cast<int>(progress_.position.epoch); }  ///< done
  double seconds() const;  ///< of this training, in all its runs

 private:
  using Clock = std::chrono::steady_clock;

  void save(bool best = false);
  void check_position(const std::string& folder) const;

  const hora::Context& world_;
  const TrainingStateOptions options_;
  TrainingParts parts_;
  std::optional<hora::Checkpoint> checkpoint_;
  TrainingProgress progress_;
  std::string progress_text_;  ///< of all ranks together, as it is saved
  std::int64_t saved_steps_ = -1;
  double seconds_before_ = 0;  ///< in runs before this one
  Clock::time_point start_ = Clock::now();
};

}  // namespace vision
