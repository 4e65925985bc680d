/// How messages say which process speaks, or is spoken of.
#pragma once

#include <cstdint>
#include <string>

namespace hora {

/// One process of the job.
struct ProcessIdentity {
  int rank = -1;
  std::string host = {};
  std::int64_t pid = 0;
};

/// This host's name; "unknown" where it has none.
std::string host_name();

/// This process as `rank`.
ProcessIdentity identity_of_process(int rank);

/// "rank 3 (host node7, pid 4242)".
std::string to_string(const ProcessIdentity& process);

}  // namespace hora
