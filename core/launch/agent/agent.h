/// horarun's process on each host of a job: starts there what the launcher asks for (mpirun on the
/// first host, MPI's daemons on the others), passes on what guards report, and ends everything that
/// descends from it when the launcher says so, ends, or is not heard from.
#pragma once

#include <chrono>
#include <optional>

#include "core/launch/control/seal.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {

struct AgentOptions {
  std::chrono::milliseconds heartbeat{5000};
  /// Without a message from the launcher for this long the agent ends everything.
  std::chrono::milliseconds silence{30000};
};

/// Messages go over the two descriptors, sealed where nodes have met over a network. Until
/// everything has ended; the exit status of the job, or 69 where the launcher is gone.
int run_agent(UniqueFd in, UniqueFd out, const AgentOptions& options,
              std::optional<SealPair> seals = std::nullopt);

}  // namespace hora::launch
