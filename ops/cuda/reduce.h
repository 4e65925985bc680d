/// The kernel behind CudaFunctions::device_reduce.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/functions.h"

namespace hora::internal {

/// Launches `reduction` on `stream`, one kernel; nothing is allocated, and the list of inputs may
/// go once this returns. Returns the launch's error, or cudaErrorInvalidValue for no input, more
/// than kMaximumInputs, an unknown type or operation, a negative count, or addresses that are null
/// or not aligned to the element size. Nothing is launched for no elements, nor for a copy onto
/// itself. Any thread; the stream's device must be current.
cudaError_t device_reduce(const DeviceReduction& reduction, cudaStream_t stream);

}  // namespace hora::internal
