/// How weights are updated: the optimizer, its learning rate, and how ranks put gradients together.
#pragma once

#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/finite_check.h>
#include <hora/torch/learning_rate.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <memory>
#include <string>

#include "examples/vision/train/options.h"

namespace vision {

/// Throws what the optimizer throws for settings that are out of its range. Without decay_all,
/// parameters of one dimension or none are a second group that is not decayed (Goyal et al., arXiv
/// 1706.02677, section 5.1; He et al., "Bag of Tricks", arXiv 1812.01187, section 3.1).
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSettings& settings,
    const torch::OrderedDict<std::string, torch::Tensor>& named_parameters);

/// With linear scaling to `images_a_step`, of all ranks and backward passes, a warm-up begins with
/// the rate that is not scaled (Goyal et al., section 2.2); without, with one part of as many as it
/// has steps, and one more. A share of all epochs ends with a whole step.
hora::LearningRateOptions learning_rate_options(const TrainingOptions& options,
                                                std::int64_t images_a_step,
                                                std::int64_t steps_per_epoch);

/// With a hook of its own each time, where the compression is one.
hora::DistributedOptimizerOptions distributed_options(const DistributionOptions& options);
/// `scaled`: a GradScaler scales the loss, and sees to infinite gradients itself.
hora::FiniteCheckOptions finite_check_options(const DistributionOptions& options, bool scaled);

}  // namespace vision
