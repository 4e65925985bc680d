/// Which options go together.
#pragma once

#include <CLI/App.hpp>

#include "examples/vision/train/options.h"

namespace vision {

/// Throws CLI::ValidationError, which names an option, what it clashes with or lacks, and what to
/// do, for options that `app` has parsed. Completes what follows from others: a stem where there is
/// none, logs that go on where the training does. Pure.
void check_combinations(const CLI::App& app, TrainingOptions& options);

}  // namespace vision
