/// How much memory this process, and so the ranks that it starts, may still take.
#pragma once

#include <cstdint>

#include "core/launch/command/cgroup.h"

namespace hora::launch {

/// Bytes: the least of MemAvailable (/proc/meminfo) and of what the memory cgroups (version 1 or 2)
/// leave, whose page cache counts as available; 0: unknown. Pure but for `read`.
std::uint64_t available_memory(const FileReader& read);

}  // namespace hora::launch
