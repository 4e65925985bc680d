/// The one place where results of MPI calls are checked, and which ranks MPI knows to have failed:
/// an MPI with ULFM (User Level Failure Mitigation, MPI Forum proposal 20) tells its callers about
/// them in place of ending the job. Thread rule: any thread, where MPI_THREAD_MULTIPLE is provided.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hora::internal {

/// Failed ranks of MPI_COMM_WORLD, ascending, where `result`, returned by an MPI call, says that a
/// process has failed; else empty, as with an MPI without ULFM. Local, calls no error handler of
/// the application's. Elsewhere than in check.cpp where MPI's headers have ULFM.
std::vector<int> failed_ranks(int result);

inline constexpr int kNoPeer = -1;

/// Throws Error(transport): "<call> to/from rank <peer> failed: <MPI's text>", and which ranks have
/// ended where MPI knows.
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

/// MPI has ended in this process, or cannot say.
bool mpi_is_finalized() noexcept;

}  // namespace hora::internal
