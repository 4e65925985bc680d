#include "ops/nccl/communicator.h"

#include <hora/error.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "ops/nccl/check.h"

namespace hora {

NcclCommunicator::NcclCommunicator(const NcclFunctions& functions, const ncclUniqueId& id,
                                   int ranks, int rank)
    : functions_(&functions), comm_(std::make_shared<ncclComm_t>(nullptr)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
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
  nccl_check(*functions_, state, "an NCCL operation in the background", *comm_);
  return state;
}

bool NcclCommunicator::ready() const {
  return state() != ncclInProgress;
}

void NcclCommunicator::check_async() const {
  state();
}

void NcclCommunicator::wait_ready(Deadline deadline) const {
  using std::chrono::microseconds;
  microseconds pause(10);
  while (!ready()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::transport,
                  "NCCL was not ready by the deadline; has another rank failed, or not come?");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, microseconds(1000));
  }
}

void NcclCommunicator::abort() noexcept {
  if (get() != nullptr) {
    nccl_check_release(*functions_, functions_->comm_abort(std::exchange(*comm_, nullptr)),
                       "ncclCommAbort");
  }
}

void NcclCommunicator::close(Deadline deadline) {
  if (get() == nullptr) {
    return;
  }
  try {
    wait_ready(deadline);
    nccl_check(*functions_, functions_->comm_finalize(*comm_), "ncclCommFinalize", *comm_);
    wait_ready(deadline);
  } catch (...) {
    abort();
    throw;
  }
  nccl_check(*functions_, functions_->comm_destroy(std::exchange(*comm_, nullptr)),
             "ncclCommDestroy");
}

}  // namespace hora
