/// What the flight record and the ledger of who came last take of a step.
#pragma once

#include <hora/context.h>

#include <vector>

#include "bench/harness/program.h"
#include "bench/harness/ranks.h"
#include "bench/training_step/step_options.h"

namespace bench {

/// Collective. Blocks with the flight record and the ledger, watched, and without, each in a
/// context of its own: `world` is shut down, and afterwards another one. Gives both, in this order.
std::vector<Measurement> measure_record(hora::Context& world, const Ranks& ranks,
                                        const StepOptions& options);

}  // namespace bench
