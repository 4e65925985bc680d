#include "ops/nccl/registered_memory.h"

#include <hora/error.h>

#include <string>
#include <utility>

#include "ops/nccl/check.h"

namespace hora {

RegisteredMemory::RegisteredMemory(const NcclFunctions& functions,
                                   const NcclCommunicator& communicator, std::size_t bytes)
    : functions_(&functions), comm_(communicator.comm_), bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  void* data = nullptr;
  const ncclResult_t result = functions.mem_alloc(&data, bytes);
  if (result != ncclSuccess) {
    throw Error(ErrorCode::out_of_memory,
                "ncclMemAlloc of " + std::to_string(bytes) +
                    " bytes failed: " + functions.get_error_string(result));
  }
  data_ = static_cast<std::byte*>(data);
  if (communicator.get() != nullptr) {
    const ncclResult_t registration =
        functions.comm_register(communicator.get(), data, bytes, &handle_);
    if (registration != ncclSuccess) {
      handle_ = nullptr;
      nccl_check_release(functions, registration, "ncclCommRegister");
    }
  }
}

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : functions_(other.functions_),
      comm_(std::move(other.comm_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      handle_(std::exchange(other.handle_, nullptr)) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  if (this != &other) {
    release();
    functions_ = other.functions_;
    comm_ = std::move(other.comm_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

RegisteredMemory::~RegisteredMemory() {
  release();
}

void RegisteredMemory::release() noexcept {
  if (data_ == nullptr) {
    return;
  }
  // A communicator that is gone has dropped its registrations.
  void* handle = std::exchange(handle_, nullptr);
  if (handle != nullptr && *comm_ != nullptr) {
    nccl_check_release(*functions_, functions_->comm_deregister(*comm_, handle),
                       "ncclCommDeregister");
  }
  nccl_check_release(*functions_, functions_->mem_free(std::exchange(data_, nullptr)),
                     "ncclMemFree");
}

}  // namespace hora
