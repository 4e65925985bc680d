/// Training and validation of ResNet-18 over all ranks.
#pragma once

#include <hora/context.h>

#include "examples/cifar10/arguments.h"
#include "examples/cifar10/dataset.h"
#include "examples/cifar10/report.h"
#include "examples/cifar10/sampler.h"
#include "examples/vision/logs/progress.h"
#include "examples/vision/logs/training_log.h"

namespace cifar10 {

/// Trains, validates after each epoch, and saves the model where the arguments say so. Collective;
/// every rank gets the same accuracy. Rank 0's progress is shown and logged. Throws hora::Error,
/// and std::exception where the model or the log cannot be written.
Report train(const hora::Context& world, const Arguments& arguments, const Data& data,
             const TrainingSampler& sampler, vision::Progress& progress, vision::TrainingLog& log);

}  // namespace cifar10
