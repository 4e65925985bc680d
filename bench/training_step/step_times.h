/// The times of steps, and where in a step they go.
#pragma once

#include <hora/context.h>

#include <functional>
#include <string>

#include "bench/harness/comparison.h"
#include "bench/harness/program.h"
#include "bench/harness/ranks.h"
#include "bench/training_step/contender.h"

namespace bench {

/// Of this rank, in blocks.
struct StepTimes {
  Blocks wall;
  Blocks cpu;  ///< of all threads of this process, one mean a block
  Blocks forward;
  Blocks backward;
  Blocks update;  ///< what follows backward: waiting for averages, and the optimizer
  // Means of a step.
  double page_faults = 0.0;
  double switches = 0.0;           ///< of threads that waited
  double switches_by_force = 0.0;  ///< of threads that another one replaced
};

/// Collective. A step that is not timed, then `steps` that are; `blocks` blocks are expected.
void time_block(const hora::Context& world, int steps, int blocks, StepTimes& times,
                Network& network, Contender& contender);

/// Collective. The slowest rank's median, what is in it, page faults and switches. Each rank is
/// compared with itself: the largest of several noisy values would be too large.
Measurement measurement_of(const Ranks& ranks, const StepTimes& times);

/// Collective. Adds how many times longer `times` took than `base`, wall and processor time, to the
/// counters, with its 95 % confidence interval: `over_plain`, where `suffix` is "plain".
void add_ratios(const Ranks& ranks, const StepTimes& times, const StepTimes& base,
                const std::string& suffix, Measurement& measurement);

}  // namespace bench
