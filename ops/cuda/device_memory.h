/// Move-only owner of device memory.
#pragma once

#include <cstddef>

#include "ops/cuda/functions.h"

namespace hora {

/// Memory of the GPU. Allocating and freeing synchronise
/// with the GPU: not for the steady state. Nothing is allocated for 0 bytes. Throws
/// Error(out_of_memory) naming the bytes. Thread rule: one thread at a time.
class DeviceMemory {
 public:
  DeviceMemory() noexcept = default;
  DeviceMemory(const CudaFunctions& functions, std::size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void release() noexcept;

  const CudaFunctions* functions_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hora
