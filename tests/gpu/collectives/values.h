/// Values of every type, as bytes, and how far results may be apart.
#pragma once

#include <hora/types.h>

#include <cstdint>

#include "tests/gpu/collectives/device_array.h"

namespace hora::test {

/// Random bytes of integer types, numbers in [-1, 1) of floating-point types; `salt` tells calls
/// and ranks apart.
Bytes random_values(DataType type, std::int64_t count, std::uint64_t salt);

double number_at(DataType type, const Bytes& values, std::size_t index);

/// The largest difference that two orders of summing `ranks` numbers below 1 may have, averaged or
/// not: each of n partial sums, at most n, and the mean's division may be rounded by half a unit in
/// the last place, n * 2^-p for a type of p bits, and that on both sides. 0 for integers.
double tolerance(DataType type, int ranks);

}  // namespace hora::test
