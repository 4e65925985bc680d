#include "examples/vision/train/schedule.h"

#include <cmath>

namespace vision {
namespace {

// Whole steps, where a share of all epochs is meant; the sum keeps 24 / 6 from becoming 3.
double warmup_steps(const TrainingOptions& options, std::int64_t steps_per_epoch) {
  const auto steps = static_cast<double>(steps_per_epoch);
  if (options.schedule.warmup_epochs) return *options.schedule.warmup_epochs * steps;
  return std::floor(options.schedule.warmup_share * options.epochs * steps + 1e-6);
}

hora::LearningRateDecay decay_of(Decay decay) {
  switch (decay) {
    case Decay::step:
      return hora::LearningRateDecay::step;
    case Decay::cosine:
      return hora::LearningRateDecay::cosine;
    case Decay::constant:
      break;
  }
  return hora::LearningRateDecay::none;
}

}  // namespace

hora::LearningRateOptions learning_rate_options(const TrainingOptions& options,
                                                std::int64_t images_a_step,
                                                std::int64_t steps_per_epoch) {
  const ScheduleOptions& schedule = options.schedule;
  const double base = options.optimizer.learning_rate;
  const int base_batch = schedule.base_batch > 0 ? schedule.base_batch : options.data.batch;
  const double highest =
      schedule.scale ? hora::linear_scaling(base, static_cast<double>(images_a_step), base_batch)
                     : base;
  const double growing = warmup_steps(options, steps_per_epoch);
  // Scaled down, too, where a step has fewer images than base_batch.
  const double start = schedule.scale ? std::fmin(base, highest) : base / (growing + 1);
  return {.rate = highest,
          .warmup_start = start,
          .warmup_epochs = growing / static_cast<double>(steps_per_epoch),
          .decay = decay_of(schedule.decay),
          .decay_epochs = schedule.step_epochs,
          .decay_factor = schedule.factor,
          .epochs = static_cast<double>(options.epochs)};
}

hora::LearningRateSchedule make_schedule(const TrainingOptions& options, std::int64_t images_a_step,
                                         std::int64_t steps_per_epoch) {
  return {learning_rate_options(options, images_a_step, steps_per_epoch), steps_per_epoch};
}

}  // namespace vision
