/// What jobs share through this host's kernel, and could leave there: memory and semaphores, of
/// POSIX (in /dev/shm) and of System V.
#pragma once

#include <set>
#include <string>

namespace hora::launch::test {

/// Those that hora, horarun, an MPI or a program of a job may have made, in words:
/// "shared memory /dev/shm/vader_segment.a.1", "semaphore /dev/shm/sem.x", "System V segment 3",
/// "System V semaphores 0".
std::set<std::string> shared_objects();

/// Whether a process (of another job, say) still uses it. Of System V's semaphores nobody can tell:
/// never.
bool is_used(const std::string& object);

}  // namespace hora::launch::test
