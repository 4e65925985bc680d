/// The optimizers that trainers offer by name.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <memory>
#include <string>

#include "examples/vision/optim/optimizer_settings.h"

namespace vision {

/// The optimizer of these settings for the parameters. Throws std::invalid_argument for an unknown
/// name, and what the optimizer throws for settings that are out of its range.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSettings& settings,
    const torch::OrderedDict<std::string, torch::Tensor>& named_parameters);

}  // namespace vision
