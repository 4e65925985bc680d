#include "ops/nccl/communicator.h"

#include <hora/error.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ops/nccl/functions.h"

namespace hora::internal {
namespace {

using std::chrono::microseconds;

constexpr std::chrono::nanoseconds kSpin = microseconds(100);
constexpr std::chrono::nanoseconds kLongestPause = microseconds(1000);
constexpr int kShare = 8;

/// NCCL_WIN_COLL_SYMMETRIC, which headers before 2.27 lack.
constexpr int kSymmetric = 1;

}  // namespace

std::chrono::nanoseconds pause_between_looks(std::chrono::nanoseconds waited) {
  if (waited < kSpin) return std::chrono::nanoseconds(0);
  return std::min(waited / kShare, kLongestPause);
}

NcclCommunicator::NcclCommunicator(const NcclFunctions& functions, const ncclUniqueId& id,
                                   int ranks, int rank, int most_ctas)
    : functions_(&functions), comm_(std::make_shared<ncclComm_t>(nullptr)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (most_ctas > 0) config.maxCTAs = most_ctas;
  const ncclResult_t result =
      functions.comm_init_rank_config(comm_.get(), ranks, id, rank, &config);
  try {
    nccl_check(functions, result, "ncclCommInitRankConfig", *comm_);
  } catch (...) {
    abort();
    throw;
  }
}

NcclCommunicator& NcclCommunicator::operator=(NcclCommunicator&& other) noexcept {
  if (this != &other) {
    abort();
    functions_ = other.functions_;
    comm_ = std::move(other.comm_);
  }
  return *this;
}

NcclCommunicator::~NcclCommunicator() {
  abort();
}

ncclResult_t NcclCommunicator::state() const {
  if (get() == nullptr) {
    throw Error(ErrorCode::invalid_use, "this NCCL communicator was closed or aborted");
  }
  ncclResult_t state = ncclSuccess;
  nccl_check(*functions_, functions_->comm_get_async_error(*comm_, &state), "ncclCommGetAsyncError",
             *comm_);
  nccl_check(*functions_, state, background_, *comm_);
  return state;
}

bool NcclCommunicator::ready() const {
  return state() != ncclInProgress;
}

void NcclCommunicator::check_async() const {
  state();
}

void NcclCommunicator::wait_ready(Deadline deadline) const {
  wait_until([this] { return ready(); }, deadline);
}

void NcclCommunicator::abort() noexcept {
  if (get() != nullptr) {
    nccl_check_release(*functions_, functions_->comm_abort(std::exchange(*comm_, nullptr)),
                       "ncclCommAbort");
  }
}

void NcclCommunicator::begin_close() {
  if (get() == nullptr) return;
  try {
    nccl_check(*functions_, functions_->comm_finalize(*comm_), "ncclCommFinalize", *comm_);
  } catch (...) {
    abort();
    throw;
  }
}

bool NcclCommunicator::closed() {
  if (get() == nullptr) return true;
  try {
    if (!ready()) return false;
  } catch (...) {
    abort();
    throw;
  }
  nccl_check(*functions_, functions_->comm_destroy(std::exchange(*comm_, nullptr)),
             "ncclCommDestroy");
  return true;
}

void NcclCommunicator::close(Deadline deadline) {
  if (get() == nullptr) return;
  try {
    wait_ready(deadline);
    begin_close();
    wait_until([this] { return closed(); }, deadline);
  } catch (...) {
    abort();
    throw;
  }
}

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
                "ncclMemAlloc of " + std::to_string(bytes) + " bytes failed: " +
                    functions.get_error_string(result) + " (" + functions.get_last_error(nullptr) +
                    "). Where the GPU has memory left, try NCCL_CUMEM_ENABLE=0");
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
      handle_(std::exchange(other.handle_, nullptr)),
      window_(std::exchange(other.window_, nullptr)) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  if (this != &other) {
    release();
    functions_ = other.functions_;
    comm_ = std::move(other.comm_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    handle_ = std::exchange(other.handle_, nullptr);
    window_ = std::exchange(other.window_, nullptr);
  }
  return *this;
}

RegisteredMemory::~RegisteredMemory() {
  release();
}

void RegisteredMemory::become_window() {
  nccl_check(*functions_,
             functions_->comm_window_register(*comm_, data_, bytes_, &window_, kSymmetric),
             "ncclCommWindowRegister (HORA_NCCL_WINDOWS)", *comm_);
}

void RegisteredMemory::deregister() noexcept {
  void* const window = std::exchange(window_, nullptr);
  void* const handle = std::exchange(handle_, nullptr);
  // A communicator that is gone has dropped its registrations.
  if (!comm_ || *comm_ == nullptr) return;
  if (window != nullptr) {
    nccl_check_release(*functions_, functions_->comm_window_deregister(*comm_, window),
                       "ncclCommWindowDeregister");
  }
  if (handle != nullptr) {
    nccl_check_release(*functions_, functions_->comm_deregister(*comm_, handle),
                       "ncclCommDeregister");
  }
}

void RegisteredMemory::release() noexcept {
  if (data_ == nullptr) {
    return;
  }
  deregister();
  nccl_check_release(*functions_, functions_->mem_free(std::exchange(data_, nullptr)),
                     "ncclMemFree");
}

void NcclCommunicators::check_async() const {
  for (const NcclCommunicator& each : open_) {
    if (each.get() != nullptr) each.check_async();
  }
}

void NcclCommunicators::abort() noexcept {
  for (NcclCommunicator& each : open_) each.abort();
  for (NcclCommunicator& each : closing_) each.abort();
}

void NcclCommunicators::retire(NcclCommunicator& communicator) {
  if (communicator.get() == nullptr) return;
  closing_.push_back(std::move(communicator));
  closing_.back().begin_close();
}

bool NcclCommunicators::advance() {
  std::erase_if(closing_, [](NcclCommunicator& each) { return each.closed(); });
  return !closing_.empty();
}

void NcclCommunicators::close(NcclCommunicator::Deadline deadline) {
  // All of them begin before any is waited for.
  for (NcclCommunicator& each : open_) {
    if (each.get() == nullptr) continue;
    each.wait_ready(deadline);
    retire(each);
  }
  wait_until([this] { return !advance(); }, deadline);
}

}  // namespace hora::internal
