/// How far a training is, and what of it is saved, and resumed: by any number of ranks, in the
/// middle of an epoch too.
#pragma once

#include <hora/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/vision/train/options.h"

namespace vision {

/// All but `loss` and `images` is the same on every rank.
struct TrainingProgress {
  /// The next step's. Its epoch is the number of epochs that are done, with their validation.
  hora::SamplerPosition position = {};
  std::int64_t steps = 0;    ///< made, in all epochs
  double loss = 0;           ///< sum over this rank's images of this epoch so far
  double images = 0;         ///< their number; 0 on a rank that did not make them
  double best_accuracy = 0;  ///< percent; 0 before the first validation
  double seconds = 0;        ///< since the begin, without the time between runs
};

/// "after epoch 3", "in epoch 4, after 96 of 128 images", "before epoch 1".
std::string describe(const TrainingProgress& progress);

/// Steps of an epoch that are to be made: all, or those that an interruption has left. Counted from
/// the epoch's begin, as steps of this run; where others made those before first(), as many whole
/// ones as their samples are enough for.
class EpochSteps {
 public:
  /// Sets the sampler, which must outlive it and stay so, to `position`, of which the epoch alone
  /// counts at an epoch's begin. Throws as DistributedSampler::restore().
  EpochSteps(hora::DistributedSampler& sampler, const hora::SamplerPosition& position);

  std::size_t first() const { return first_; }
  /// Behind the last one; one less than a whole epoch's where the ranks before left a part of one.
  std::size_t end() const { return first_ - first_of_samples_ + sampler_.steps(); }

  /// This rank's samples, for Loader::start(), whose steps begin at first_of_samples(): the whole
  /// epoch's where it can be cut into this run's steps, so that the same images take the places of
  /// bad ones as in one that was not interrupted; else of what is left.
  std::vector<std::size_t> samples() const { return sampler_.local_order(); }
  std::size_t first_of_samples() const { return first_of_samples_; }

  /// Where ranks are when they have made step `step`.
  hora::SamplerPosition after(std::size_t step) const;

 private:
  hora::DistributedSampler& sampler_;
  std::size_t first_ = 0;
  std::size_t first_of_samples_ = 0;
};

/// Throws std::runtime_error where the folder has checkpoints on this host, and the training does
/// not go on from them: it would replace them, the best one too.
void check_unused(const CheckpointOptions& options);

/// The training's progress, kept up to date by the trainer, and its checkpoints, if the options
/// name a folder. With the same layout of ranks a training on CPUs goes on to the same bits.
/// Collective, but for what is const. Thread rule and errors: as hora::Checkpoint.
class TrainingState {
 public:
  /// The arguments must outlive it. `sampler`: of the training images; its position is not looked
  /// at. `hook`: the optimizer's; null: it has none.
  TrainingState(const hora::Context& world, const CheckpointOptions& options,
                torch::nn::Module& model, hora::DistributedOptimizer& optimizer,
                hora::GradScaler& scaler, const hora::DistributedSampler& sampler,
                hora::GradientHook* hook);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// Loads what the options name, before the first step; returns where it lies, or "" where the
  /// training begins anew. What the checkpoint lacks begins so, with a warning. Throws CommonError
  /// for a checkpoint that is missing, damaged, or of other data or another seed.
  std::string resume();

  /// After a step of this rank's `images` with this mean loss, which has led to `reached`
  /// (EpochSteps::after()). Saves in the background where `every_steps` says so, and commits.
  void step_done(const hora::SamplerPosition& reached, double loss, std::int64_t images);
  /// After an epoch and its validation, if any, which gave this percentage. Saves in the
  /// background.
  void epoch_done(std::optional<double> accuracy);
  /// The training ends before its time: saves, where that was not just done, to the disk; false
  /// where there is no folder.
  bool interrupted();
  /// Returns when the last checkpoint is on the disk.
  void wait();

  const TrainingProgress& progress() const { return progress_; }
  int epochs() const { return static_cast<int>(progress_.position.epoch); }  ///< done
  double seconds() const;  ///< of this training, in all its runs

 private:
  void save(bool best = false);

  const hora::Context& world_;
  const CheckpointOptions options_;
  torch::nn::Module& model_;
  const hora::DistributedSampler& sampler_;
  hora::Checkpoint checkpoint_;
  TrainingProgress progress_;
  std::string progress_text_;  ///< as it was loaded
  std::int64_t saved_steps_ = -1;
  double seconds_before_ = 0;  ///< in runs before this one
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace vision
