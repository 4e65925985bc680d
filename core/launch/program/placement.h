/// Where the ranks of a job run, and how the agents there are reached.
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "core/launch/options/launch_options.h"
#include "core/launch/rendezvous/rendezvous.h"
#include "core/launch/supervisor/launcher.h"

namespace hora::launch {

/// Sets the hosts of `launcher` with their ranks, from -H, a hostfile, Slurm's allocation, or this
/// host alone, and their agents: `self`, the path of this program, started by ssh or srun. This
/// host is among them, for it runs mpirun, even where it has no ranks. The error says what the
/// hosts have and what to do.
tl::expected<void, std::string> place_on_hosts(const LaunchOptions& options,
                                               const std::string& self, LauncherOptions& launcher);

/// The same for nodes that have met, of which this is node 0. Nodes of one host's name are told
/// apart by their number.
void place_on_nodes(NodesMet met, const std::string& self, LauncherOptions& launcher);

}  // namespace hora::launch
