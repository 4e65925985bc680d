/// This machine's processors, cores and memory nodes, as hwloc reads them.
#pragma once

#include <hwloc.h>

#include <memory>
#include <type_traits>

namespace hora::internal {

using MachineTopology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, decltype(&hwloc_topology_destroy)>;

/// Without caches and devices, and without what its control group leaves out. Null where hwloc
/// cannot read it.
MachineTopology machine_topology();

}  // namespace hora::internal
