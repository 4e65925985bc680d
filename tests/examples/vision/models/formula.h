/// Weights, buffers and images by the formula of
/// examples/vision/models/reference/make_reference.py, which explains it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string_view>

#include "examples/vision/models/model.h"

namespace vision {

/// FNV-1a, 64 bits.
std::uint64_t fnv1a(std::string_view text);

/// All parameters and buffers, each by its name.
void fill_by_formula(Classifier& model);

/// [4, 3, side, side], -1 to 1.
torch::Tensor formula_images(std::int64_t side);

}  // namespace vision
