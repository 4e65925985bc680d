#include "ops/cuda/memory.h"

#include <string>

namespace hora {
namespace {

template <class Allocate>
void* allocated(const CudaFunctions& functions, std::size_t bytes, const char* call,
                Allocate allocate) {
  void* data = nullptr;
  if (bytes == 0) return data;
  const cudaError_t result = allocate(&data);
  if (result != cudaSuccess) {
    throw_cuda_error(functions, result,
                     std::string(call) + " of " + std::to_string(bytes) + " bytes");
  }
  return data;
}

}  // namespace

DeviceMemory::DeviceMemory(const CudaFunctions& functions, std::size_t bytes)
    : CudaMemory(functions,
                 allocated(functions, bytes, "cudaMalloc",
                           [&](void** data) { return functions.malloc(data, bytes); }),
                 bytes) {}

PinnedMemory::PinnedMemory(const CudaFunctions& functions, std::size_t bytes)
    : CudaMemory(functions,
                 allocated(functions, bytes, "cudaHostAlloc",
                           [&](void** data) {
                             return functions.host_alloc(data, bytes, cudaHostAllocDefault);
                           }),
                 bytes) {}

}  // namespace hora
