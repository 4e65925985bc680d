/// horarun's process on each host of a job: starts there what the launcher asks for (mpirun on the
/// first host, MPI's daemons on the others), passes on what guards report, and ends everything that
/// descends from it when the launcher says so, ends, or is not heard from.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/launch/control/seal.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {

struct AgentOptions {
  std::chrono::milliseconds heartbeat{5000};
  /// Without a message from the launcher for this long the agent ends everything.
  std::chrono::milliseconds silence{30000};
  std::string launcher = "the launcher";  ///< as errors name it
};

struct AgentEnding {
  int status = 69;           ///< of the job, as the launcher has said it
  std::string cut_off = {};  ///< why the agent has ended everything by itself, where it has
};

/// Messages go over the two descriptors, sealed where nodes have met over a network. Until
/// everything has ended.
AgentEnding run_agent(UniqueFd in, UniqueFd out, const AgentOptions& options,
                      std::optional<SealPair> seals = std::nullopt);

}  // namespace hora::launch
