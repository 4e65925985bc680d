/// Whether anybody has written to parameters meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "frameworks/torch/optimizer/parameter_form.h"

namespace hora::internal {

/// Hashes versions, and `samples` values of each on the CPU: LibTorch's SGD writes through data(),
/// which no version shows.
std::uint64_t fingerprint_of(const std::vector<Parameter>& parameters, std::int64_t samples);

}  // namespace hora::internal
