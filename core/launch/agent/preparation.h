/// Whether a host has what a job needs.
#pragma once

#include "core/launch/control/messages.h"

namespace hora::launch {

/// Whether the folder and the program are there and the program can be executed; each problem says
/// what was tried and what to do. And what the host has: whether that is enough is for the launcher
/// to say (supervisor/prepared_hosts.h).
Prepared prepare(const Prepare& request);

/// This process's host.
Hello this_host();

}  // namespace hora::launch
