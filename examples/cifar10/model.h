/// The network as the arguments want it, where they want it.
#pragma once

#include <hora/context.h>

#include <cstddef>
#include <memory>
#include <string>

#include "examples/cifar10/arguments.h"
#include "examples/vision/models/model.h"

namespace cifar10 {

/// Throws std::runtime_error where this job cannot compute as the arguments say.
torch::Device choose_device(const hora::Context& world, const Arguments& arguments);

/// Freshly initialised from the seed, on `device`.
std::shared_ptr<vision::Classifier> make_model(const Arguments& arguments,
                                               const torch::Device& device, std::size_t classes,
                                               std::size_t steps_an_epoch);

/// "resnet18 with the CIFAR stem, 11173962 values".
std::string describe(const vision::Classifier& model);

}  // namespace cifar10
