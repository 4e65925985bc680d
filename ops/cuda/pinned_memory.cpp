#include "ops/cuda/pinned_memory.h"

#include <string>
#include <utility>

#include "ops/cuda/check.h"

namespace hora {

PinnedMemory::PinnedMemory(const CudaFunctions& functions, std::size_t bytes)
    : functions_(&functions), bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  void* data = nullptr;
  const cudaError_t result = functions.host_alloc(&data, bytes, cudaHostAllocDefault);
  if (result != cudaSuccess) {
    throw_cuda_error(functions, result, "cudaHostAlloc of " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(data);
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : functions_(other.functions_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  if (this != &other) {
    release();
    functions_ = other.functions_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

PinnedMemory::~PinnedMemory() {
  release();
}

void PinnedMemory::release() noexcept {
  if (data_ != nullptr) {
    cuda_check_release(*functions_, functions_->free_host(std::exchange(data_, nullptr)),
                       "cudaFreeHost");
  }
}

}  // namespace hora
