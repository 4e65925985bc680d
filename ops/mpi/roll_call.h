/// Ranks that wait for one another report which are missing, and time out.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace hora::internal {

/// How long ranks wait for one another; 0: without limit, and without a warning.
struct Patience {
  std::chrono::milliseconds warning{0};  ///< `warn` is called whenever as much time has passed
  std::chrono::milliseconds timeout{0};  ///< then it is an error
  std::function<void(const std::string&)> warn = {};  ///< takes a sentence for the log
};

/// Returns once each of `ranks` (ascending ranks of `comm`, this one among them) has called it with
/// the same list. Blocking calls of MPI that follow then wait only for ranks that have called.
///
/// Messages of tags 32741 and 32742 on `comm`: each rank reports to the list's lowest, which sends
/// "go" when all have. A rank whose list another rank of that list contradicts gets Error(mismatch)
/// with both lists, and so does the other one. After the timeout: Error(transport) naming those
/// that have not called, and the job ends with this process (abandon_job()). `what` is the call
/// that ranks should make. Ranks in texts are those of MPI_COMM_WORLD. Thread rule: one thread at a
/// time in a process.
void call_roll(MPI_Comm comm, const std::vector<int>& ranks, const std::string& what,
               const Patience& patience);

}  // namespace hora::internal
