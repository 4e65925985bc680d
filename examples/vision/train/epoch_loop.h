/// The steps of a training, epoch by epoch: measured, shown and logged.
#pragma once

#include <hora/context.h>
#include <hora/distributed_optimizer.h>
#include <hora/torch/distributed_sampler.h>
#include <hora/torch/learning_rate.h>

#include <cstddef>

#include "examples/vision/logs/progress.h"
#include "examples/vision/train/batches.h"
#include "examples/vision/train/options.h"
#include "examples/vision/train/setup.h"
#include "examples/vision/train/train_step.h"

namespace vision {

struct TrainedEpoch {
  double loss;     ///< mean over all ranks and steps, without those left out by --non-finite
  double waiting;  ///< share of the time in which a rank had no data, mean over ranks
};

/// Thread rule: one thread. Everything given must outlive it.
class EpochLoop {
 public:
  EpochLoop(const hora::Context& world, const TrainingOptions& options, Setup& setup,
            const LoaderOptions& loader, hora::DistributedOptimizer& optimizer, TrainStep& step,
            Progress& progress);

  /// Goes on where an earlier run has made this many epochs.
  void resume_after(int epochs);
  /// Trains in epoch `epoch`, from 0. Collective.
  TrainedEpoch run(int epoch);
  /// How long the last validation took, for the time that is left.
  void set_validation_seconds(double seconds) { validation_seconds_ = seconds; }

  /// Over all ranks, of this run, validation left out.
  double images_per_second() const;

 private:
  TrainingStep measured(int epoch, std::size_t step, const StepResult& result) const;
  double seconds_left(int epoch) const;
  double average_over_ranks(double value) const;

  const hora::Context& world_;
  const TrainingOptions& options_;
  Setup& setup_;
  hora::DistributedSampler sampler_;
  hora::LearningRateSchedule schedule_;
  Batches batches_;
  hora::DistributedOptimizer& optimizer_;
  TrainStep& step_;
  Progress& progress_;
  std::size_t steps_done_ = 0;
  std::size_t resumed_steps_ = 0;  ///< of these, by an earlier run
  double training_seconds_ = 0;    ///< without validation
  double validation_seconds_ = 0;  ///< of the last one
};

}  // namespace vision
