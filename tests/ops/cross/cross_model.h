/// The results of the cross group's operations, computed serially and written independently of it.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <random>
#include <vector>

namespace hora::test {

using Bytes = std::vector<std::byte>;

/// Random values: integers of the full range, floating-point ones in (-1, 1), whose sums are
/// rounded.
Bytes random_values(DataType type, std::size_t bytes, std::mt19937_64& random);

/// The sum in the order of `inputs`, times scale (for floating-point types).
Bytes sum_in_order(DataType type, const std::vector<Bytes>& inputs, double scale);

}  // namespace hora::test
