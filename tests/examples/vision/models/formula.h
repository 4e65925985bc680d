/// Weights, buffers and images by the formula of
/// examples/vision/models/reference/make_reference.py, which explains it.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "examples/vision/models/model.h"

namespace vision {

/// FNV-1a, 64 bits.
std::uint64_t fnv1a(std::string_view text);

/// All parameters and buffers, each by its name.
void fill_by_formula(Classifier& model);

/// Weights of two dimensions and more, each by its name; biases become zero, and all else stays as
/// make_model() made it.
void fill_weights_by_formula(Classifier& model);

/// 0 to 255.
std::vector<std::uint8_t> formula_bytes(std::string_view name, std::size_t count);

/// [4, 3, side, side], -1 to 1.
torch::Tensor formula_images(std::int64_t side);

}  // namespace vision
