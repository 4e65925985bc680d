#include "ops/cuda/device_memory.h"

#include <string>
#include <utility>

#include "ops/cuda/check.h"

namespace hora {

DeviceMemory::DeviceMemory(const CudaFunctions& functions, std::size_t bytes)
    : functions_(&functions), bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  void* data = nullptr;
  const cudaError_t result = functions.malloc(&data, bytes);
  if (result != cudaSuccess) {
    throw_cuda_error(functions, result, "cudaMalloc of " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(data);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : functions_(other.functions_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this != &other) {
    release();
    functions_ = other.functions_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

DeviceMemory::~DeviceMemory() {
  release();
}

void DeviceMemory::release() noexcept {
  if (data_ != nullptr) {
    cuda_check_release(*functions_, functions_->free(std::exchange(data_, nullptr)), "cudaFree");
  }
}

}  // namespace hora
