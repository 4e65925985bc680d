/// The one place where results of NCCL calls are checked.
#pragma once

#include <string_view>

#include "ops/nccl/functions.h"

namespace hora {

/// Throws Error(transport) "<call> failed: <NCCL's text> (error N)", followed by the last error
/// that NCCL reported for `comm`, where one is given. `call` as in "ncclAllReduce".
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

}  // namespace hora
