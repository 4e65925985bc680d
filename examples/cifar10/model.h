/// The network as the arguments want it, where they want it.
#pragma once

#include <hora/context.h>

#include <cstddef>

#include "examples/cifar10/arguments.h"
#include "examples/cifar10/resnet18.h"

namespace cifar10 {

/// Throws std::runtime_error where this job cannot compute as the arguments say.
torch::Device choose_device(const hora::Context& world, const Arguments& arguments);

/// Freshly initialised from the seed, on `device`.
ResNet18 make_model(const Arguments& arguments, const torch::Device& device, std::size_t classes,
                    std::size_t steps_an_epoch);

}  // namespace cifar10
