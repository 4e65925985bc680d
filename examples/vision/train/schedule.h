/// The learning rate that a trainer's options describe.
#pragma once

#include <hora/torch/learning_rate.h>

#include <cstdint>

#include "examples/vision/train/options.h"

namespace vision {

/// With ScheduleOptions::scale the highest rate is that of linear scaling to `images_a_step`, those
/// of all ranks and all backward passes of one step. A warm-up begins with the rate that was not
/// scaled (Goyal et al., arXiv 1706.02677, section 2.2); without scaling it grows from one part of
/// as many as it has steps, and one more. Epochs that are a share of all begin no step later than
/// that share. `steps_per_epoch`: of the optimizer, >= 1. Pure.
hora::LearningRateOptions learning_rate_options(const TrainingOptions& options,
                                                std::int64_t images_a_step,
                                                std::int64_t steps_per_epoch);

/// Throws hora::Error where these are out of range.
hora::LearningRateSchedule make_schedule(const TrainingOptions& options, std::int64_t images_a_step,
                                         std::int64_t steps_per_epoch);

}  // namespace vision
