#include "ops/mpi/check.h"

#include <fmt/format.h>
#include <hora/error.h>

#include <array>
#include <limits>
#include <utility>

#include "core/base/text.h"

namespace hora::internal {

#if !defined(HORA_MPI_HAS_ULFM)
std::vector<int> failed_ranks(int) {
  return {};
}
#endif

bool mpi_is_finalized() noexcept {
  int finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

void throw_mpi_error(int result, std::string_view call, int peer) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  std::string what(call);
  if (peer != kNoPeer) what += fmt::format(" rank {}", peer);
  if (MPI_Error_string(result, text.data(), &length) == MPI_SUCCESS) {
    what +=
        fmt::format(" failed: {}", std::string_view(text.data(), static_cast<std::size_t>(length)));
  } else {
    what += fmt::format(" failed: error code {}", result);
  }
  if (const auto failed = failed_ranks(result); !failed.empty()) {
    what += fmt::format("; {} ended (of MPI_COMM_WORLD)", ranks_have(failed));
  }
  throw Error(ErrorCode::transport, what, peer);
}

int mpi_count(std::size_t bytes, std::string_view what) {
  if (std::in_range<int>(bytes)) return static_cast<int>(bytes);
  throw Error(ErrorCode::transport,
              fmt::format("{} is {} bytes long; one MPI call moves at most {}", what, bytes,
                          std::numeric_limits<int>::max()));
}

}  // namespace hora::internal
