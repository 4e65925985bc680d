/// Where the ranks of a node keep each other's blocks.
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace hora::internal {

/// Whether all ranks of the set map each other's windows: they are of one node.
HORA_EXPORT bool share_memory(const Context& context, ProcessSet set);

/// Addresses in this process of the block that each rank of the set gives, by its rank in the set:
/// `bytes` long everywhere, inside a Buffer of the CPU. They are valid while that rank has the
/// Buffer. Collective, under `name`. Throws Error(invalid_argument) where the block is in no
/// Buffer, or the ranks do not share_memory(). Thread rule: any thread.
HORA_EXPORT std::vector<std::byte*> peer_addresses(const Context& context, ProcessSet set,
                                                   const std::string& name, const std::byte* data,
                                                   std::size_t bytes);

}  // namespace hora::internal
