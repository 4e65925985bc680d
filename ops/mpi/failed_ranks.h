/// Which ranks MPI knows to have failed: an MPI with ULFM (User Level Failure Mitigation, MPI Forum
/// proposal 20) tells its callers about them in place of ending the job.
/// Thread rule: any thread, where MPI_THREAD_MULTIPLE is provided.
#pragma once

#include <vector>

namespace hora::internal {

/// Of MPI_COMM_WORLD, ascending, where `result`, returned by an MPI call, says that a process has
/// failed; else empty, as with an MPI without ULFM. Local, calls no error handler of the
/// application's. CMake selects the source (failed_ranks_*.cpp) by what MPI's headers have.
std::vector<int> failed_ranks(int result);

}  // namespace hora::internal
