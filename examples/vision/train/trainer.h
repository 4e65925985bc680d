/// Training and validation over all ranks.
#pragma once

#include <hora/context.h>

#include "examples/vision/logs/progress.h"
#include "examples/vision/train/options.h"
#include "examples/vision/train/report.h"
#include "examples/vision/train/setup.h"
#include "examples/vision/train/stop_request.h"

namespace vision {

/// Trains, validates after each epoch, and saves the model where the options say so. Collective;
/// every rank gets the same accuracy. Rank 0's progress is shown and logged. Where `stop`, which
/// may be null, says so, it saves a checkpoint, if the options name a folder for it, and the report
/// is one of a stopped training. Throws hora::Error, CommonError where nothing can be resumed, and
/// std::exception where an image cannot be read, or the model or the log cannot be written.
Report train(const hora::Context& world, const TrainingOptions& options, Setup& setup,
             Progress& progress, StopRequest* stop = nullptr);

}  // namespace vision
