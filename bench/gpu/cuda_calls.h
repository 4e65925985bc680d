/// Shared by the benchmarks of plain CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>

namespace bench {

/// Throws std::runtime_error with CUDA's text.
inline void cuda(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

struct FreeDevice {
  void operator()(void* data) const noexcept { static_cast<void>(cudaFree(data)); }
};

/// The exit code of a program that has nothing to run on.
constexpr int kNoGpu = 77;

/// Says so where there is none.
inline bool has_gpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  std::printf("no GPU here\n");
  return false;
}

}  // namespace bench
