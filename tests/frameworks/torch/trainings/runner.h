/// Runs a training with hora's optimizers, beside the reference.
#pragma once

#include <string>

#include "tests/frameworks/torch/process_sets.h"
#include "tests/frameworks/torch/trainings/training.h"

namespace hora::internal::test {

/// Collective. What this rank found wrong; empty where its parameters were the reference's after
/// each of its steps.
std::string run_training(const Context& world, const ParitySet& parity, const Training& training);

/// Collective. Of a training with features that do not go together: the text of the error, thrown
/// where the last of them is asked for; empty where there was none.
std::string refusal_of(const Context& world, const ParitySet& parity, const Training& training);

}  // namespace hora::internal::test
