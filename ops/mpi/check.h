/// The one place where results of MPI calls are checked.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace hora::internal {

inline constexpr int kNoPeer = -1;

/// Throws Error(transport): "<call> to/from rank <peer> failed: <MPI's text>", and which ranks have
/// ended where MPI knows (failed_ranks.h).
[[noreturn]] void throw_mpi_error(int result, std::string_view call, int peer);

/// `call` as in "MPI_Isend to"; `peer` is the rank in the communicator that it went to, if any. The
/// text is put together only where the call has failed.
inline void mpi_check(int result, std::string_view call, int peer = kNoPeer) {
  if (result != MPI_SUCCESS) [[unlikely]] {
    throw_mpi_error(result, call, peer);
  }
}

/// MPI's counts are int. Throws Error(transport) naming `what` where `bytes` is more than 2^31 - 1.
int mpi_count(std::size_t bytes, std::string_view what);

/// "MPI_THREAD_SERIALIZED" and so on.
std::string mpi_thread_level_name(int level);

}  // namespace hora::internal
