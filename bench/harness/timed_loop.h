/// Times operations that all ranks run together, on values whose results are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "bench/harness/comparison.h"
#include "bench/harness/ranks.h"

namespace bench {

/// One way of doing the operation. `round` numbers the operations, so that values differ between
/// them: data that stays in one core's cache makes a pass without copies look faster than it is.
struct Contender {
  std::function<void(std::uint32_t round)> write;  ///< this rank's input; not timed
  std::function<void()> operate;                   ///< timed
  /// Elements of this rank's result that are not what `write` of all ranks makes it.
  std::function<std::int64_t(std::uint32_t round)> count_wrong;
};

struct LoopOptions {
  double min_seconds = 0.5;  ///< of timed operation for each contender, all blocks together
  int blocks = 10;
  std::int64_t min_iterations = 3;  ///< of a block
  std::int64_t max_iterations = 2000;
};

struct Timing {
  Blocks blocks;           ///< seconds of the slowest rank
  std::int64_t wrong = 0;  ///< elements of all ranks, after the last timed operation
  std::int64_t iterations() const;
};

/// Collective. Blocks of the contenders alternate. The number of iterations in a block grows until
/// the slowest rank needs min_seconds / blocks for them; all ranks agree on it. Before each
/// operation every rank writes its input anew, then all call a barrier.
std::vector<Timing> time_alternately(const Ranks& ranks, const std::vector<Contender>& contenders,
                                     const LoopOptions& options);

// The values that ranks write, and the results that follow; pure.

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
