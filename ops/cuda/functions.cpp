#include "ops/cuda/functions.h"

#include <hora/error.h>

#include <string>

#include "core/base/log.h"

namespace hora::internal {
namespace {

std::string describe(const CudaFunctions& functions, cudaError_t result, std::string_view call) {
  const char* text = functions.get_error_string(result);
  return std::string(call) + " failed: " + (text != nullptr ? text : "unknown error") + " (error " +
         std::to_string(static_cast<int>(result)) + ")";
}

}  // namespace

void throw_cuda_error(const CudaFunctions& functions, cudaError_t result, std::string_view call) {
  functions.get_last_error();
  throw Error(result == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::transport,
              describe(functions, result, call));
}

void cuda_check_release(const CudaFunctions& functions, cudaError_t result,
                        std::string_view call) noexcept {
  if (result == cudaSuccess) {
    return;
  }
  try {
    functions.get_last_error();
    log().debug(describe(functions, result, call));
  } catch (...) {
    // Without memory for its text the failure is not reported.
  }
}

}  // namespace hora::internal
