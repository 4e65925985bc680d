/// A negotiated tensor in memory that a node's ranks share: its number, the place of its data, and
/// who was the last to become ready for it; and ranks of a node as bits.
#pragma once

#include <bitset>
#include <chrono>
#include <cstddef>
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

/// Where a rank's tensor lies: one of its windows, and the byte offset in it. Of a tensor on a
/// device what its ranks tell one another (BegunOnDevice::place).
struct Location {
  std::uint32_t window = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
  bool operator==(const Location&) const = default;
};

/// The location of a rank that has joined and contributes nothing.
inline constexpr Location kNowhere{.window = UINT32_MAX, .reserved = 0, .offset = 0};

/// The last of some ranks to become ready for an id.
struct LastArrival {
  using Time = std::chrono::nanoseconds;
  static constexpr Time kAlone = Time::max();

  int rank = -1;       ///< world rank; -1: none of them has submitted it
  Time at{};           ///< when it became ready, by the clock of the leader that reports it
  Time late = kAlone;  ///< after the one before it; kAlone: there is none
  bool operator==(const LastArrival&) const = default;
};

/// Ranks a node can have. A larger host becomes several nodes.
inline constexpr int kMaxLocalSize = 512;

/// Bit r: local rank r.
using LocalRanks = std::bitset<kMaxLocalSize>;

/// Those below `local_size`.
inline LocalRanks all_local_ranks(std::size_t local_size) {
  return LocalRanks().set() >> (kMaxLocalSize - local_size);
}

}  // namespace hora::internal
