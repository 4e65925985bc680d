#include "ops/context/memory_node.h"

#include <hwloc.h>
#include <sched.h>

#include <memory>
#include <type_traits>

namespace hora::internal {
namespace {

using MachineTopology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, decltype(&hwloc_topology_destroy)>;

/// Null where hwloc cannot read it.
MachineTopology machine_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {nullptr, hwloc_topology_destroy};
  MachineTopology owner(topology, hwloc_topology_destroy);
  // Beside processors and memory nodes what tells which belongs to which.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  if (hwloc_topology_load(topology) != 0) owner.reset();
  return owner;
}

}  // namespace

int memory_node_of_process() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return kNoMemoryNode;
  const MachineTopology machine = machine_topology();
  if (!machine) return kNoMemoryNode;
  // Of processors beside several kinds of memory a set has several nodes: the first stands for it.
  hwloc_const_nodeset_t nodes = nullptr;
  hwloc_obj_t processor = nullptr;
  while ((processor = hwloc_get_next_obj_by_type(machine.get(), HWLOC_OBJ_PU, processor))) {
    if (processor->os_index >= CPU_SETSIZE || !CPU_ISSET(processor->os_index, &allowed)) continue;
    if (nodes && !hwloc_bitmap_isequal(nodes, processor->nodeset)) return kNoMemoryNode;
    nodes = processor->nodeset;
  }
  return nodes ? hwloc_bitmap_first(nodes) : kNoMemoryNode;
}

}  // namespace hora::internal
