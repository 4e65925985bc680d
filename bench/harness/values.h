/// What the ranks write, and the results that follow. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

/// Elements [first, first + count) of what rank `rank` writes: whole numbers below 2^24 / ranks,
/// different for each rank, round and element, so that every sum is exact in float32 whatever its
/// order.
void write_values(float* data, std::size_t count, int rank, std::uint32_t round,
                  std::size_t first = 0);

/// Elements of `data` that are not elements [first, first + count) of what `rank` wrote.
std::int64_t count_wrong_values(const float* data, std::size_t count, int rank, std::uint32_t round,
                                std::size_t first = 0);

/// Elements of `data` that are not the sum of what `ranks` ranks wrote. For at most 256 ranks.
std::int64_t count_wrong_sums(const float* data, std::size_t count, int ranks, std::uint32_t round,
                              std::size_t first = 0);

}  // namespace bench
