/// Sums of the benchmarks' values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/harness/timed_loop.h"

namespace bench {

/// The values that `ranks` ranks write in `round`, added up one after the other.
inline std::vector<float> sums(std::size_t count, int ranks, std::uint32_t round) {
  std::vector<float> sum(count, 0.0F);
  std::vector<float> own(count);
  for (int rank = 0; rank < ranks; ++rank) {
    write_values(own.data(), count, rank, round);
    for (std::size_t i = 0; i < count; ++i) sum[i] += own[i];
  }
  return sum;
}

}  // namespace bench
