/// How LibTorch's kernels round a product that is added to something, on this CPU.
#pragma once

#include <c10/core/ScalarType.h>

#include "ops/local/kernels.h"

namespace hora::internal {

struct LibTorchRounding {
  Rounding addition = Rounding::separate;  ///< of at::add() with a factor
  Rounding square = Rounding::separate;    ///< of at::addcmul()
};

/// For float32 and float64: LibTorch's kernels for AVX2, AVX-512 and NEON fuse, those for other
/// CPUs (and for ATEN_CPU_CAPABILITY=default) do not. Found out by the operations themselves, once.
/// Thread rule: any thread.
const LibTorchRounding& libtorch_rounding(c10::ScalarType type);

}  // namespace hora::internal
