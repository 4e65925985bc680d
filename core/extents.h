/// The length of what a shape describes.
#pragma once

#include <hora/types.h>

#include <cstdint>
#include <span>

namespace hora::internal {

/// The product of the extents. Throws Error(invalid_argument) for a type that is none of hora's, a
/// negative extent, or more than 2^48 bytes.
std::int64_t elements_of(DataType type, std::span<const std::int64_t> shape);

}  // namespace hora::internal
