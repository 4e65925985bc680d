#include "ops/mpi/check.h"

#include <hora/error.h>

#include <array>
#include <limits>

#include "core/base/text.h"
#include "ops/mpi/failed_ranks.h"

namespace hora::internal {

void throw_mpi_error(int result, std::string_view call, int peer) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  std::string reason = "error code " + std::to_string(result);
  if (MPI_Error_string(result, text.data(), &length) == MPI_SUCCESS) {
    reason.assign(text.data(), static_cast<std::size_t>(length));
  }
  std::string what(call);
  if (peer != kNoPeer) {
    what += " rank " + std::to_string(peer);
  }
  what += " failed: " + reason;
  if (const auto failed = failed_ranks(result); !failed.empty()) {
    what += "; " + ranks_have(failed) + " ended (of MPI_COMM_WORLD)";
  }
  throw Error(ErrorCode::transport, what, peer);
}

int mpi_count(std::size_t bytes, std::string_view what) {
  constexpr auto limit = static_cast<std::size_t>(std::numeric_limits<int>::max());
  if (bytes > limit) {
    throw Error(ErrorCode::transport, std::string(what) + " is " + std::to_string(bytes) +
                                          " bytes long; one MPI call moves at most " +
                                          std::to_string(limit));
  }
  return static_cast<int>(bytes);
}

std::string mpi_thread_level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
    default:
      return "thread level " + std::to_string(level);
  }
}

}  // namespace hora::internal
