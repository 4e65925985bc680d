/// The one place where results of CUDA calls are checked.
#pragma once

#include <string_view>

#include "ops/cuda/functions.h"

namespace hora {

/// Throws Error(transport) "<call> failed: <CUDA's text> (error N)", or Error(out_of_memory) where
/// memory was lacking, and clears CUDA's last error, so that the application's next check of it
/// does not find hora's. `call` as in "cudaEventRecord".
[[noreturn]] void throw_cuda_error(const CudaFunctions& functions, cudaError_t result,
                                   std::string_view call);

/// The text is put together only where the call has failed.
inline void cuda_check(const CudaFunctions& functions, cudaError_t result, std::string_view call) {
  if (result != cudaSuccess) [[unlikely]] {
    throw_cuda_error(functions, result, call);
  }
}

/// For destructors: a failure is logged at debug level and cleared.
void cuda_check_release(const CudaFunctions& functions, cudaError_t result,
                        std::string_view call) noexcept;

}  // namespace hora
