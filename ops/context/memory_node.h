/// Where this process's memory lies.
#pragma once

namespace hora::internal {

/// Of memory_node_of_process(): none.
inline constexpr int kNoMemoryNode = -1;

/// The operating system's number of the memory (NUMA) node that all processors belong to that the
/// calling thread may use, so that what this process writes first lies there. kNoMemoryNode where
/// they belong to several, or hwloc cannot tell. Reads the machine's topology, which takes some
/// milliseconds.
int memory_node_of_process();

}  // namespace hora::internal
