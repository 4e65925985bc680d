/// What the tests of collectives share.
#pragma once

#include <hora/hora.h>

#include <cstring>
#include <vector>

namespace hora::internal::test {

/// True on every rank when all ranks hold these very bytes. Collective.
inline bool same_everywhere(const Context& world, const void* data, std::size_t bytes) {
  std::vector<std::uint8_t> of_root(bytes);
  if (bytes > 0) std::memcpy(of_root.data(), data, bytes);
  broadcast(world, view(of_root.data(), static_cast<std::int64_t>(bytes)), {.name = "test.root"});
  std::int32_t same = bytes == 0 || std::memcmp(of_root.data(), data, bytes) == 0 ? 1 : 0;
  allreduce(world, view(&same, 1), {.name = "test.same", .op = ReduceOp::sum});
  return same == world.size();
}

}  // namespace hora::internal::test
