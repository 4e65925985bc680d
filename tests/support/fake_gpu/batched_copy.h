/// hora's copy kernel, on host memory.
#pragma once

#include "ops/cuda/functions.h"

namespace hora::internal::test {

/// True where the types can be converted, and the memory is aligned to the elements.
bool valid(const BatchedCopy& copy);

/// As ops/cuda/functions.h says, exactly: the product is formed without rounding.
void run(const BatchedCopy& copy);

}  // namespace hora::internal::test
