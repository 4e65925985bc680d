/// Values of every type, as bytes, and how far results may be apart.
#pragma once

#include <hora/types.h>

#include <cstdint>
#include <string>

#include "tests/support/reference/reference.h"

namespace hora::internal::test {

/// As the reference's; `salt` tells calls and ranks apart.
Bytes random_values(DataType type, std::int64_t count, std::uint64_t salt);

/// The largest difference that two orders of summing `ranks` numbers below 1 may have, averaged or
/// not: each of n partial sums, at most n, and the mean's division may be rounded by half a unit in
/// the last place, n * 2^-p for a type of p bits, and that on both sides. 0 for integers.
double tolerance(DataType type, int ranks);

/// Expects no element to be further apart.
void expect_close(int ranks, DataType type, const Bytes& result, const Bytes& expected,
                  const std::string& what);

}  // namespace hora::internal::test
