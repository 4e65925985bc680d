/// How much memory a training needs on its GPU.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace vision {

/// The most bytes that tensors on the device have taken at one time since the process began;
/// nothing where it is no GPU. Any thread.
std::optional<double> gpu_peak_bytes(const c10::Device& device);

}  // namespace vision
