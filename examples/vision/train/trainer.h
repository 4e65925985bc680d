/// Training and validation over all ranks.
#pragma once

#include <hora/context.h>

#include "examples/vision/logs/progress.h"
#include "examples/vision/train/options.h"
#include "examples/vision/train/report.h"
#include "examples/vision/train/setup.h"

namespace vision {

/// Trains, validates after each epoch, and saves the model where the options say so. Collective;
/// every rank gets the same accuracy. Rank 0's progress is shown and logged. Throws hora::Error,
/// and std::exception where an image cannot be read, or the model or the log cannot be written.
Report train(const hora::Context& world, const TrainingOptions& options, Setup& setup,
             Progress& progress);

}  // namespace vision
