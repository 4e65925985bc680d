#include "core/base/process.h"

namespace hora::internal {

MachineTopology machine_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {nullptr, hwloc_topology_destroy};
  MachineTopology owner(topology, hwloc_topology_destroy);
  // Memory nodes, packages and what else tells which processors belong together.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) != 0) owner.reset();
  return owner;
}

}  // namespace hora::internal
