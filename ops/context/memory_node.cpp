#include "ops/context/memory_node.h"

#include <hwloc.h>
#include <sched.h>

#include "core/base/process.h"

namespace hora::internal {

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
