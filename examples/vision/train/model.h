/// The network as the options want it.
#pragma once

#include <hora/context.h>

#include <cstddef>
#include <memory>
#include <string>

#include "examples/vision/models/model.h"
#include "examples/vision/train/arguments.h"

namespace vision {

/// Freshly initialised from the seed, on `device`; equal on all ranks that compute alike. `world`
/// must outlive it.
std::shared_ptr<Classifier> make_classifier(const hora::Context& world, const Arguments& options,
                                            const torch::Device& device, std::size_t classes,
                                            std::size_t steps_an_epoch);

/// "resnet18 with the CIFAR stem, 11173962 values".
std::string describe(const Classifier& model);

}  // namespace vision
