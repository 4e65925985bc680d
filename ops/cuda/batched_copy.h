/// The kernel behind CudaFunctions::batched_copy.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/functions.h"

namespace hora {

/// Launches `copy` on `stream`, one kernel for each 184 pieces that are not empty; nothing is
/// allocated, and `copy` and its pieces may go once this returns. Returns the launch's error, which
/// may be that of earlier work (cudaGetLastError), or cudaErrorInvalidValue where types cannot be
/// converted, a piece has a negative count, no target, or addresses not aligned to its types, or
/// the flag is not aligned to the target's type.
///
/// Values that are scaled or converted are multiplied in float64 where one of the types is float64,
/// else in float32, and then rounded to the target's type, to nearest even. Zeros that a null
/// source stands for are not multiplied. Any thread; the stream's device must be current.
cudaError_t batched_copy(const BatchedCopy& copy, cudaStream_t stream);

}  // namespace hora
