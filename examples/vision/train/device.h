/// Where a rank computes.
#pragma once

#include <hora/context.h>
#include <torch/types.h>

#include "examples/vision/train/options.h"

namespace vision {

/// Throws std::runtime_error where this job cannot compute as the options say.
torch::Device choose_device(const hora::Context& world, const TrainingOptions& options);

/// Ranks beside each other share the cores of their host, for more threads than cores make every
/// step slower. The user's OMP_NUM_THREADS holds.
void share_cores(const hora::Context& world);

/// cuDNN's algorithms: the same bits in every run, or the fastest ones, found out by trying.
void choose_algorithms(bool deterministic);

}  // namespace vision
