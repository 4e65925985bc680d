/// From submission to result for a tensor of 4 bytes, and how much of a core hora takes while
/// nothing happens.
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

/// Collective. What the one before has in it and cannot be without: each rank's main thread, which
/// computes as there, wakes a thread of its own process that sleeps on a futex, with the engine's
/// time slice, and computes until it sees the answer. The slowest rank's times.
Latency futex_wakeup(const Ranks& ranks, int iterations);

/// Collective. A blocking allreduce after all ranks slept for some milliseconds and called a
/// barrier; the slowest rank's time.
Latency four_bytes_from_idle(const hora::Context& world, const Ranks& ranks, int iterations);

/// Of the rank that used most.
struct ProcessorTime {
  double seconds = 0.0;          ///< of all threads of the process, user and system
  double elapsed_seconds = 0.0;  ///< the shortest rank's
  double wrong = 0.0;
};

/// Collective. Every main thread sleeps for `seconds`, nothing is submitted.
ProcessorTime with_nothing_submitted(const Ranks& ranks, double seconds);

/// Collective. The last rank sleeps for `seconds` in its own code before it submits; the others
/// wait in their handles. Of those, the ones on the sleeper's node are measured, or, with
/// `another_node`, the ones elsewhere: there must be such ranks.
ProcessorTime waiting_for_sleeper(const hora::Context& world, const Ranks& ranks, double seconds,
                                  bool another_node);

/// Seconds that one blocking allreduce of 4 bytes takes, in each round.
struct RecordCost {
  std::vector<double> on;
  std::vector<double> watched;
  std::vector<double> off;
  double wrong = 0.0;
};

/// Collective. With flight records and the ledger of who came last, as under `horarun --watch`, and
/// without both, in turn (HORARUN_RECORD), each round with a context of its own: `world` is shut
/// down, and afterwards another one. The slowest rank's times.
RecordCost flight_record(hora::Context& world, const Ranks& ranks, int iterations, int rounds);

}  // namespace bench
