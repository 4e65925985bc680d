/// Reads which cores this process, and so the ranks that it starts, may use.
#pragma once

#include "core/launch/command/cgroup.h"
#include "core/launch/command/cores.h"

namespace hora::launch {

/// The least quota of the cgroups (version 1 or 2) that /proc/self/cgroup names, up to their root,
/// in CPUs' worth of time; 0: none. Pure but for `read`.
double cgroup_cpu_limit(const FileReader& read);

/// The affinity mask, its cores and NUMA nodes as hwloc finds them, and the lesser of the cgroup's
/// quota and Slurm's SLURM_CPUS_ON_NODE (which a Slurm without an affinity plugin leaves
/// unenforced). Where hwloc finds nothing each CPU counts as a core. Some milliseconds. Any thread;
/// the mask is the calling thread's.
GrantedCores granted_cores();

}  // namespace hora::launch
