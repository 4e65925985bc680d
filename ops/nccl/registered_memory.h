/// Device memory that NCCL may use directly.
#pragma once

#include <cstddef>
#include <memory>

#include "ops/nccl/communicator.h"
#include "ops/nccl/functions.h"

namespace hora {

/// Move-only owner of memory from ncclMemAlloc, registered with a communicator that is ready. NCCL
/// works without the registration as well, only slower: where it fails, that is logged at debug
/// level. May outlive the communicator. Nothing is allocated for 0 bytes.
/// Thread rule: as NcclCommunicator.
class RegisteredMemory {
 public:
  RegisteredMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  RegisteredMemory(const NcclFunctions& functions, const NcclCommunicator& communicator,
                   std::size_t bytes);
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  ~RegisteredMemory();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  bool registered() const noexcept { return handle_ != nullptr; }

 private:
  void release() noexcept;

  const NcclFunctions* functions_ = nullptr;
  std::shared_ptr<ncclComm_t> comm_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* handle_ = nullptr;
};

}  // namespace hora
