#include "tests/gpu/batched_copy/device.h"

namespace hora::internal::test {

const char* missing_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (result != cudaSuccess) return cudaGetErrorString(result);
  return count == 0 ? "none is visible" : "";
}

const CudaFunctions& device() {
  return cuda_runtime();
}

}  // namespace hora::internal::test
