/// The processes below one, as /proc has them.
/// Thread rule: any thread; what is read may be out of date at once.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

#include "core/process_state.h"

namespace hora::launch {

using internal::ProcessStat;

/// All descendants, parents before their children; without those that have ended.
std::vector<ProcessStat> descendants_of(pid_t ancestor);
/// The same, of a list of processes. Pure.
std::vector<ProcessStat> descendants_of(pid_t ancestor, const std::vector<ProcessStat>& all);

/// SIGKILL to all descendants of this process, as often as it takes until none is left, for this
/// long at most. How its children ended is lost. Where a process ends meanwhile, its own children
/// are found only by a child subreaper (prctl(2)).
void kill_descendants(std::chrono::milliseconds limit) noexcept;

}  // namespace hora::launch
