#include "ops/nccl/functions.h"

#include <hora/error.h>

#include <string>

#include "core/base/log.h"
#include "core/engine/interfaces.h"

namespace hora::internal {
namespace {

std::string describe(const NcclFunctions& functions, ncclResult_t result, std::string_view call,
                     ncclComm_t comm) {
  const char* text = functions.get_error_string(result);
  std::string what = std::string(call) + " failed: " + (text != nullptr ? text : "unknown error") +
                     " (error " + std::to_string(static_cast<int>(result)) + ")";
  if (comm != nullptr) {
    const char* last = functions.get_last_error(comm);
    if (last != nullptr && *last != '\0') {
      what += std::string("; NCCL's last error: ") + last;
    }
  }
  return what;
}

}  // namespace

void throw_nccl_error(const NcclFunctions& functions, ncclResult_t result, std::string_view call,
                      ncclComm_t comm) {
  const std::string text = describe(functions, result, call, comm);
  if (result == ncclRemoteError) throw PeerFailure(ErrorCode::transport, text);
  throw Error(ErrorCode::transport, text);
}

void nccl_check_release(const NcclFunctions& functions, ncclResult_t result,
                        std::string_view call) noexcept {
  if (result == ncclSuccess || result == ncclInProgress) {
    return;
  }
  try {
    log().debug(describe(functions, result, call, nullptr));
  } catch (...) {
    // Without memory for its text the failure is not reported.
  }
}

}  // namespace hora::internal
