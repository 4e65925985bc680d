#include <dlfcn.h>

#include "ops/nccl/functions.h"

namespace hora::internal {
namespace {

/// Null where the NCCL that is loaded lacks it, whatever headers this was compiled with.
template <class Function>
Function* newer(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

const NcclFunctions& nccl_library() {
  static const NcclFunctions functions{
      .get_error_string = ncclGetErrorString,
      .get_last_error = ncclGetLastError,
      .get_version = ncclGetVersion,
      .get_unique_id = ncclGetUniqueId,
      .comm_init_rank_config = ncclCommInitRankConfig,
      .comm_get_async_error = ncclCommGetAsyncError,
      .comm_finalize = ncclCommFinalize,
      .comm_destroy = ncclCommDestroy,
      .comm_abort = ncclCommAbort,
      .comm_register = ncclCommRegister,
      .comm_deregister = ncclCommDeregister,
      .comm_window_register = newer<ncclResult_t(ncclComm_t, void*, std::size_t, void**, int)>(
          "ncclCommWindowRegister"),
      .comm_window_deregister = newer<ncclResult_t(ncclComm_t, void*)>("ncclCommWindowDeregister"),
      .mem_alloc = ncclMemAlloc,
      .mem_free = ncclMemFree,
      .group_start = ncclGroupStart,
      .group_end = ncclGroupEnd,
      .all_reduce = ncclAllReduce,
      .reduce_scatter = ncclReduceScatter,
      .all_gather = ncclAllGather,
      .broadcast = ncclBroadcast,
      .reduce = ncclReduce,
      .send = ncclSend,
      .recv = ncclRecv,
  };
  return functions;
}

}  // namespace hora::internal
