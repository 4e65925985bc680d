/// From submission to result for a tensor of 4 bytes.
#pragma once

#include <hora/hora.h>

#include <vector>

#include "bench/harness/ranks.h"

namespace bench {

struct Latency {
  std::vector<double> seconds;
  double wrong = 0.0;  ///< results that were not the sum, on all ranks
};

/// Collective. From the moment before the last rank's allreduce_async to the moment at which the
/// slowest rank's main thread, which computes all the while and polls its handle every fraction
/// of a microsecond, sees it ready. So it includes the submitting call, negotiation, the engines'
/// wake-up, the reduction and the poll. Before each submission every rank computes for about a
/// millisecond, by then its engine sleeps. All ranks must be on one host: they compare clocks.
Latency last_submission_to_ready(const hora::Context& world, const Ranks& ranks, int iterations);

/// Collective. A blocking allreduce after all ranks slept for some milliseconds and called a
/// barrier; the slowest rank's time.
Latency four_bytes_from_idle(const hora::Context& world, const Ranks& ranks, int iterations);

}  // namespace bench
