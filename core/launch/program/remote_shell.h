/// What mpirun starts in the place of ssh: asks the launcher, through this host's agent, to start a
/// daemon on another host.
#pragma once

#include <span>
#include <string>

namespace hora::launch {

/// `arguments` are those that mpirun gives its remote shell. Returns the exit status at once: 0
/// where the agent was asked.
int run_remote_shell(std::span<const std::string> arguments);

}  // namespace hora::launch
