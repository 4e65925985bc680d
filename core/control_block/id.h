/// The numbers of negotiated tensors.
#pragma once

#include <cstdint>

namespace hora::internal {

/// A negotiated tensor: slot in the low 16 bits, the slot's generation above. A slot that is given
/// up and used again gets the next generation, so a late message about the old id is recognised.
using Id = std::uint32_t;
constexpr int slot_of(Id id) {
  return static_cast<int>(id & 0xffffu);
}
constexpr std::uint32_t generation_of(Id id) {
  return id >> 16;
}
constexpr Id make_id(int slot, std::uint32_t generation) {
  return (generation << 16) | static_cast<std::uint32_t>(slot);
}

/// Slots of a set at most.
inline constexpr int kMaxIdCapacity = 65536;

}  // namespace hora::internal
