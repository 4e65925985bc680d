/// The steps of a training, epoch by epoch: measured, shown and logged.
#pragma once

#include <hora/context.h>
#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/distributed_sampler.h>
#include <hora/torch/learning_rate.h>

#include <cstddef>
#include <optional>

#include "examples/vision/logs/progress.h"
#include "examples/vision/train/batches.h"
#include "examples/vision/train/options.h"
#include "examples/vision/train/setup.h"
#include "examples/vision/train/stop_request.h"
#include "examples/vision/train/train_step.h"
#include "examples/vision/train/training_state.h"

namespace vision {

struct TrainedEpoch {
  /// Mean over all ranks and steps, without those left out by --non-finite; none where all were.
  std::optional<double> loss;
  double waiting;        ///< share of the time in which a rank had no data, mean over ranks
  double learning_rate;  ///< of the last step
};

/// Thread rule: one thread. Everything given must outlive it.
class EpochLoop {
 public:
  EpochLoop(const hora::Context& world, const TrainingOptions& options, Setup& setup,
            const LoaderOptions& loader, hora::DistributedOptimizer& optimizer, TrainStep& step,
            Progress& progress);

  /// Trains in the state's epoch, from its position to the end, and tells it of each step; nothing
  /// where `stop`, which may be null, ends it before. Collective.
  std::optional<TrainedEpoch> run(TrainingState& state, StopRequest* stop);
  /// How long the last validation took, for the time that is left.
  void set_validation_seconds(double seconds) { validation_seconds_ = seconds; }

  /// Over all ranks, of this run, validation left out.
  double images_per_second() const;
  /// Of averaging behind backward, 0 .. 1, mean over ranks. Collective.
  double hidden_share() const;

 private:
  /// `step` steps of this epoch's `end` are made.
  TrainingStep measured(int epoch, std::size_t step, std::size_t end,
                        const StepResult& result) const;
  double seconds_left(int epoch, std::size_t steps_of_epoch) const;
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
  std::size_t steps_done_ = 0;     ///< in this run
  double training_seconds_ = 0;    ///< without validation
  double validation_seconds_ = 0;  ///< of the last one
};

}  // namespace vision
