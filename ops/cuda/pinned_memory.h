/// Move-only owner of pinned memory.
#pragma once

#include <cstddef>

#include "ops/cuda/functions.h"

namespace hora {

/// Host memory that the GPU reads and writes directly (page-locked). Allocating and freeing
/// synchronise with the GPU: not for the steady state. Nothing is allocated for 0 bytes. Throws
/// Error(out_of_memory) naming the bytes. Thread rule: one thread at a time.
class PinnedMemory {
 public:
  PinnedMemory() noexcept = default;
  PinnedMemory(const CudaFunctions& functions, std::size_t bytes);
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void release() noexcept;

  const CudaFunctions* functions_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hora
