/// Move-only owners of memory on the GPU and of host memory that it can use.
#pragma once

#include <cstddef>

#include "ops/cuda/owned.h"

namespace hora {

struct ReleaseDeviceMemory {
  using Handle = void*;
  static constexpr auto function = &CudaFunctions::free;
  static constexpr auto name = "cudaFree";
};
struct ReleasePinnedMemory {
  using Handle = void*;
  static constexpr auto function = &CudaFunctions::free_host;
  static constexpr auto name = "cudaFreeHost";
};

/// Allocating and freeing synchronise with the GPU: not for the steady state. Nothing is allocated
/// for 0 bytes. Thread rule: one thread at a time.
template <class Release>
class CudaMemory {
 public:
  CudaMemory() noexcept = default;

  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.get()); }
  std::size_t bytes() const noexcept { return memory_.get() ? bytes_ : 0; }

 protected:
  CudaMemory(const CudaFunctions& functions, void* memory, std::size_t bytes) noexcept
      : memory_(functions, memory), bytes_(bytes) {}

 private:
  Owned<Release> memory_;
  std::size_t bytes_ = 0;
};

/// Memory of the GPU.
class DeviceMemory : public CudaMemory<ReleaseDeviceMemory> {
 public:
  DeviceMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  DeviceMemory(const CudaFunctions& functions, std::size_t bytes);
};

/// Host memory that the GPU reads and writes directly (page-locked).
class PinnedMemory : public CudaMemory<ReleasePinnedMemory> {
 public:
  PinnedMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  PinnedMemory(const CudaFunctions& functions, std::size_t bytes);
};

}  // namespace hora
