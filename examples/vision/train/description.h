/// What a training says of itself before it begins.
#pragma once

#include <hora/context.h>

#include <string>
#include <vector>

#include "examples/vision/train/options.h"
#include "examples/vision/train/setup.h"

namespace vision {

/// A line each: data, model, ranks, device, optimizer and gradients, batch.
std::vector<std::string> describe(const hora::Context& world, const TrainingOptions& options,
                                  const Setup& setup);

}  // namespace vision
