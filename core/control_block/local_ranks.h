/// Ranks of a node as bits.
#pragma once

#include <bitset>
#include <cstddef>

namespace hora::internal {

/// Ranks a node can have. A larger host becomes several nodes.
inline constexpr int kMaxLocalSize = 512;

/// Bit r: local rank r.
using LocalRanks = std::bitset<kMaxLocalSize>;

/// Those below `local_size`.
inline LocalRanks all_local_ranks(std::size_t local_size) {
  return LocalRanks().set() >> (kMaxLocalSize - local_size);
}

}  // namespace hora::internal
