#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/process_set.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/api/internals.h"
#include "core/engine/engine.h"

namespace hora::internal {

bool share_memory(const Context& context, ProcessSet set) {
  const auto& node = context.ranks_of_node(context.cross_rank());
  const auto members = ranks_of(context, set);
  return std::includes(node.begin(), node.end(), members.begin(), members.end());
}

std::vector<std::byte*> peer_addresses(const Context& context, ProcessSet set,
                                       const std::string& name, const std::byte* data,
                                       std::size_t bytes) {
  const std::optional<Location> own = location_of(context, data, bytes);
  if (!own || !share_memory(context, set)) {
    throw Error(ErrorCode::invalid_argument,
                "peer_addresses: a block outside of hora's buffers, or a set of several nodes",
                context.rank(), name);
  }
  const std::vector<std::int64_t> sent{own->window, static_cast<std::int64_t>(own->offset)};
  const auto members = ranks_of(context, set);
  std::vector<std::int64_t> all(sent.size() * members.size());
  allgather_into(context, view(sent), view(all), {.name = name, .process_set = set});
  std::vector<std::byte*> addresses;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Location location{.window = static_cast<std::uint32_t>(all[2 * i]),
                            .offset = static_cast<std::uint64_t>(all[2 * i + 1])};
    addresses.push_back(peer_address(context, members[i], location, bytes));
  }
  return addresses;
}

std::optional<Location> location_of(const Context& context, const std::byte* data,
                                    std::size_t bytes) {
  return runtime_of(context)->memory().find(data, bytes);
}

std::byte* peer_address(const Context& context, int rank, Location location, std::size_t bytes) {
  Runtime& runtime = *runtime_of(context);
  return runtime.memory().address(runtime.parts().world.topology.local_rank_of(rank), location,
                                  bytes);
}

}  // namespace hora::internal
