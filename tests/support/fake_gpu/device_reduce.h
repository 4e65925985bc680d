/// hora's reduction kernel, on host memory.
#pragma once

#include "ops/cuda/functions.h"

namespace hora::internal::test {

/// True where there are inputs, not too many, and the memory is aligned to the elements.
bool valid(const DeviceReduction& reduction);

/// As ops/cuda/functions.h says: it names the host's kernels as the model.
void run(const DeviceReduction& reduction);

}  // namespace hora::internal::test
