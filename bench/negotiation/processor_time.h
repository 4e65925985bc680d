/// How much of a core hora takes while nothing happens.
#pragma once

#include <hora/hora.h>

#include "bench/harness/ranks.h"

namespace bench {

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

}  // namespace bench
