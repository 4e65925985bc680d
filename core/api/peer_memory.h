/// Where the ranks of a node keep each other's blocks.
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/control_block/tensor_id.h"

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

/// Where the other ranks of the node find this rank's [data, data + bytes), by peer_address();
/// nothing where that is not inside a Buffer of the CPU. Thread rule: any thread.
HORA_EXPORT std::optional<Location> location_of(const Context& context, const std::byte* data,
                                                std::size_t bytes);

/// The address in this process of the `bytes` bytes that `rank` (of the world, on this node) has at
/// `location`; valid while that rank has the Buffer. Not collective: memory that is new there is
/// mapped here when first asked for. Throws Error(transport) where that rank has no such memory.
/// Thread rule: any thread.
HORA_EXPORT std::byte* peer_address(const Context& context, int rank, Location location,
                                    std::size_t bytes);

}  // namespace hora::internal
