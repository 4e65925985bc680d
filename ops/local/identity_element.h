/// The element that changes nothing.
#pragma once

#include <hora/types.h>

#include <cstddef>

namespace hora {

/// out[i] = the identity element of `op`, i in [0, count): 0 for sums (averages, Adasum; of
/// floating-point types -0, which changes no sign of a zero), 1 for products, and for min and max
/// the largest and the smallest value of the type (infinities where it has them; for booleans true
/// and false).
void fill_identity(DataType type, ReduceOp op, std::byte* out, std::size_t count);

}  // namespace hora
