/// Cost of a collective, from measured times. Pure: values in, values out.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace hora::internal {

struct TimedCollective {
  std::size_t bytes = 0;
  double seconds = 0;
};

/// Time that grows with the bytes in a straight line: the model of Hockney, Parallel Computing 20
/// (1994) 389-398, for a whole collective.
struct CollectiveCost {
  double fixed = 0;     ///< seconds: negotiation, wake-up, messages
  double per_byte = 0;  ///< seconds: copies, sums, the link
  double seconds(std::size_t bytes) const { return fixed + per_byte * static_cast<double>(bytes); }
};

/// The median of the slopes between any two, and of what each leaves beside that: Theil and Sen's
/// estimator, which a single outlier does not move. Neither is below 0. Nothing where there are not
/// two sizes.
std::optional<CollectiveCost> fitted_cost(std::span<const TimedCollective> measured);

/// Sizes in the order in which they are measured, each `growth` times the one before.
inline constexpr std::size_t least_timed_bytes = std::size_t{16} << 10;
inline constexpr std::size_t timed_growth = 16;
inline constexpr std::size_t timed_sizes = 3;

/// How many collectives that take `seconds` each are timed: as many as fit into timing_limit, at
/// most most_repetitions; 0: none.
inline constexpr int most_repetitions = 5;
inline constexpr double timing_limit = 0.2;  ///< seconds, of a size
int repetitions_of(double seconds);

}  // namespace hora::internal
