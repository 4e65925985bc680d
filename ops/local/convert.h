/// Conversion between floating-point types, at the speed of memory.
#pragma once

#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>
#include <limits>

namespace hora::internal {

/// What convert() does besides converting.
struct Conversion {
  double scale = 1.0;
  /// The largest magnitude that a product may have.
  double limit = std::numeric_limits<double>::max();
};

/// out[i] = in[i] * scale for i in [0, count): the product is formed in float32, or in float64
/// where either type is that, and then rounded once to the target's type, to nearest even. Returns
/// false where a product is NaN, infinite, or of a magnitude above the limit; all are written all
/// the same.
///
/// The bits do not depend on count, alignment or instruction set, but for a NaN's payload. `out`
/// may be `in` where the types are equal; otherwise the two do not overlap. Both aligned to their
/// elements. Large blocks at 64-byte aligned places are written past the caches (as stream_copy
/// does). Conversions between float64 and another type are some times slower than the rest. Throws
/// Error(invalid_argument) for a type that is not a floating-point type.
HORA_EXPORT bool convert(DataType source, const std::byte* in, DataType target, std::byte* out,
                         std::size_t count, const Conversion& conversion = {});

}  // namespace hora::internal
