/// The network as the options want it.
#pragma once

#include <hora/context.h>

#include <cstddef>
#include <memory>
#include <string>

#include "examples/vision/models/model.h"
#include "examples/vision/train/options.h"

namespace vision {

/// On `device`, with weights drawn from the seed, or on rank 0 with those that the options name:
/// hora::broadcast_parameters() makes it equal on all ranks. Weights of another number of classes
/// leave the last layer as it was drawn, and rank 0 prints that; not with --evaluate. `world` must
/// outlive it. Throws hora::Error where the weights cannot be read or are another network's.
std::shared_ptr<Classifier> make_classifier(const hora::Context& world,
                                            const TrainingOptions& options,
                                            const torch::Device& device, std::size_t classes,
                                            std::size_t steps_an_epoch);

/// "resnet18 with the CIFAR stem, 11173962 values".
std::string describe(const Classifier& model);

}  // namespace vision
