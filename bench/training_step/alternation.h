/// Steps of the contenders in turns.
#pragma once

#include <hora/context.h>

#include <vector>

#include "bench/harness/program.h"
#include "bench/harness/ranks.h"
#include "bench/training_step/step_options.h"

namespace bench {

/// Collective. Blocks of options.contenders alternate, of which the first is `plain`; those with
/// hora's arena in contexts of their own: `world` is shut down, and afterwards another one. Gives a
/// measurement for each, in this order.
std::vector<Measurement> measure_alternately(hora::Context& world, const Ranks& ranks,
                                             const StepOptions& options);

}  // namespace bench
