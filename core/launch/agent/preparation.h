/// Whether a host has what a job needs.
#pragma once

#include "core/launch/control/messages.h"

namespace hora::launch {

/// The folder and the program are there, the program can be executed, and there is enough shared
/// memory. Each problem says what was tried and what to do.
Prepared prepare(const Prepare& request);

/// This process's host.
Hello this_host();

}  // namespace hora::launch
