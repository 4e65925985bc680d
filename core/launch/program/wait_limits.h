/// How long ranks may wait for others.
#pragma once

#include <hora/settings.h>

#include <span>

#include "core/launch/watch/job_ending.h"

namespace hora::launch {

/// As the ranks' settings have it (HORA_STALL_WARNING, HORA_INIT_TIMEOUT, HORA_TIMEOUT): the flags'
/// come before the environment's. What is wrong in them is the ranks' error. Pure.
WaitLimits wait_limits(std::span<const SettingAssignment> flags,
                       std::span<const SettingAssignment> environment);

}  // namespace hora::launch
