#include "ops/cross/vector_halving.h"

#include <algorithm>
#include <bit>

namespace hora {

int halving_members(int members) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(members)));
}

std::vector<HalvingLevel> halving_levels(int me, int members, std::size_t bytes) {
  std::vector<HalvingLevel> levels;
  Range range{0, bytes};
  for (int distance = 1; distance < members; distance *= 2) {
    const std::size_t half = std::min(range.bytes, align_up((range.bytes + 1) / 2));
    const Range first{range.begin, half};
    const Range second{range.begin + half, range.bytes - half};
    const bool is_lower = (me & distance) == 0;
    range = is_lower ? first : second;
    levels.push_back({me ^ distance, is_lower, range, is_lower ? second : first});
  }
  return levels;
}

}  // namespace hora
