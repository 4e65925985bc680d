/// Values whose reductions are exact, so that their order does not matter.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace hora::test {

/// Small whole numbers, whose sums are exact in every type; so are products of up to 4 of them in
/// floating-point types, if they are below 4.
/// Booleans are any byte.
std::vector<std::byte> whole_numbers(DataType type, std::int64_t count, std::mt19937_64& random,
                                     int below = 12);

}  // namespace hora::test
