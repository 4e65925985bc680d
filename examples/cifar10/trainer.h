/// Training and validation over all ranks.
#pragma once

#include <hora/context.h>
#include <hora/torch/distributed_sampler.h>

#include "examples/cifar10/arguments.h"
#include "examples/cifar10/data_source.h"
#include "examples/cifar10/progress.h"
#include "examples/cifar10/report.h"

namespace cifar10 {

/// Trains, validates after each epoch, and saves the model where the arguments say so. `sampler` is
/// the training images'. Collective; every rank gets the same accuracy. Rank 0's progress is shown.
/// Throws hora::Error, and std::exception where the model cannot be written.
Report train(const hora::Context& world, const Arguments& arguments, const Data& data,
             const hora::DistributedSampler& sampler, Progress& progress);

}  // namespace cifar10
