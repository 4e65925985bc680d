/// The calls into NCCL that hora makes, as a table (see ops/cuda/functions.h), and the one place
/// where their results are checked.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <string_view>

namespace hora::internal {

/// Members are named after NCCL's functions without their prefix, with the same arguments, results
/// and thread rules.
struct NcclFunctions {
  std::function<const char*(ncclResult_t)> get_error_string;
  std::function<const char*(ncclComm_t)> get_last_error;
  std::function<ncclResult_t(int*)> get_version;
  std::function<ncclResult_t(ncclUniqueId*)> get_unique_id;

  std::function<ncclResult_t(ncclComm_t*, int ranks, ncclUniqueId, int rank, ncclConfig_t*)>
      comm_init_rank_config;
  std::function<ncclResult_t(ncclComm_t, ncclResult_t* state)> comm_get_async_error;
  std::function<ncclResult_t(ncclComm_t)> comm_finalize;
  std::function<ncclResult_t(ncclComm_t)> comm_destroy;
  std::function<ncclResult_t(ncclComm_t)> comm_abort;
  std::function<ncclResult_t(ncclComm_t, void*, std::size_t, void** handle)> comm_register;
  std::function<ncclResult_t(ncclComm_t, void* handle)> comm_deregister;
  /// NCCL 2.27 and newer, else empty. `window`: an ncclWindow_t, which older headers lack; filled
  /// in once the communicator is ready again. Collective over its ranks; in a group or alone.
  std::function<ncclResult_t(ncclComm_t, void*, std::size_t, void** window, int flags)>
      comm_window_register;
  std::function<ncclResult_t(ncclComm_t, void* window)> comm_window_deregister;

  std::function<ncclResult_t(void**, std::size_t)> mem_alloc;
  std::function<ncclResult_t(void*)> mem_free;

  std::function<ncclResult_t()> group_start;
  std::function<ncclResult_t()> group_end;
  std::function<ncclResult_t(const void*, void*, std::size_t count, ncclDataType_t, ncclRedOp_t,
                             ncclComm_t, cudaStream_t)>
      all_reduce;
  std::function<ncclResult_t(const void*, void*, std::size_t received_count, ncclDataType_t,
                             ncclRedOp_t, ncclComm_t, cudaStream_t)>
      reduce_scatter;
  std::function<ncclResult_t(const void*, void*, std::size_t sent_count, ncclDataType_t, ncclComm_t,
                             cudaStream_t)>
      all_gather;
  std::function<ncclResult_t(const void*, void*, std::size_t count, ncclDataType_t, int root,
                             ncclComm_t, cudaStream_t)>
      broadcast;
  std::function<ncclResult_t(const void*, void*, std::size_t count, ncclDataType_t, ncclRedOp_t,
                             int root, ncclComm_t, cudaStream_t)>
      reduce;
  std::function<ncclResult_t(const void*, std::size_t count, ncclDataType_t, int peer, ncclComm_t,
                             cudaStream_t)>
      send;
  std::function<ncclResult_t(void*, std::size_t count, ncclDataType_t, int peer, ncclComm_t,
                             cudaStream_t)>
      recv;
};

/// The NCCL that this process has loaded.
const NcclFunctions& nccl_library();

/// Throws Error(transport) "<call> failed: <NCCL's text> (error N)", followed by the last error
/// that NCCL reported for `comm`, where one is given; as a PeerFailure where that is
/// ncclRemoteError. `call` as in "ncclAllReduce".
[[noreturn]] void throw_nccl_error(const NcclFunctions& functions, ncclResult_t result,
                                   std::string_view call, ncclComm_t comm);

/// ncclInProgress is no error: the caller polls. The text is put together only where the call has
/// failed.
inline void nccl_check(const NcclFunctions& functions, ncclResult_t result, std::string_view call,
                       ncclComm_t comm = nullptr) {
  if (result != ncclSuccess && result != ncclInProgress) [[unlikely]] {
    throw_nccl_error(functions, result, call, comm);
  }
}

/// For destructors and where a failure is tolerated: it is logged at debug level.
void nccl_check_release(const NcclFunctions& functions, ncclResult_t result,
                        std::string_view call) noexcept;

/// Everything between construction and end() is one call of NCCL. Without end(), after an
/// exception, the destructor ends the group, for in one that stays open NCCL only queues what the
/// thread does from then on, an abort included. NCCL drops the calls where one of them has failed,
/// and else starts them: the communicator is to be aborted then.
class NcclCallGroup {
 public:
  explicit NcclCallGroup(const NcclFunctions& nccl) : nccl_(nccl) {
    nccl_check(nccl_, nccl_.group_start(), "ncclGroupStart");
  }
  ~NcclCallGroup() {
    if (open_) nccl_check_release(nccl_, nccl_.group_end(), "ncclGroupEnd");
  }
  NcclCallGroup(const NcclCallGroup&) = delete;
  NcclCallGroup& operator=(const NcclCallGroup&) = delete;
  void end() {
    open_ = false;
    nccl_check(nccl_, nccl_.group_end(), "ncclGroupEnd");
  }

 private:
  const NcclFunctions& nccl_;
  bool open_ = true;
};

}  // namespace hora::internal
