/// hora's update kernel, on host memory.
#pragma once

#include "ops/cuda/functions.h"

namespace hora::internal::test {

/// True where the type is one that it takes, and each piece has what the step needs, aligned.
bool valid(const BatchedUpdate& update);

/// As ops/cuda/functions.h says: it names the host's kernels as the model.
void run(const BatchedUpdate& update);

}  // namespace hora::internal::test
