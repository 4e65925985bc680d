/// Starts agents, and does what the Supervisor decides.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/launch/control/seal.h"
#include "core/launch/control/unique_fd.h"
#include "core/launch/live/live_view.h"
#include "core/launch/supervisor/rank_output.h"
#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {

/// The connection with an agent that has been started; none: the plan has a command for it.
struct AgentSource {
  UniqueFd connection = {};
  std::optional<SealPair> seals = {};
};

struct LauncherOptions {
  JobPlan plan;
  std::vector<AgentSource> agents;  ///< in the order of the plan's hosts
  RankOutputOptions output;
  std::optional<LiveOptions> live;  ///< --watch
  bool verbose = false;
};

/// Until the job has ended; the exit status of horarun. Throws Error, std::system_error.
int run_launcher(LauncherOptions options);

}  // namespace hora::launch
