/// Training and validation over all ranks.
#pragma once

#include <hora/context.h>
#include <hora/torch/distributed_sampler.h>

#include "examples/cifar10/arguments.h"
#include "examples/cifar10/data_source.h"
#include "examples/cifar10/report.h"
#include "examples/vision/logs/progress.h"
#include "examples/vision/logs/training_log.h"

namespace cifar10 {

/// Trains, validates after each epoch, and saves the model where the arguments say so. `sampler` is
/// the training images'. Collective; every rank gets the same accuracy. Rank 0's progress is shown
/// and logged. Throws hora::Error, and std::exception where the model or the log cannot be written.
Report train(const hora::Context& world, const Arguments& arguments, const Data& data,
             const hora::DistributedSampler& sampler, vision::Progress& progress,
             vision::TrainingLog& log);

}  // namespace cifar10
