/// A place in the memory that a node's ranks share.
#pragma once

#include <cstdint>

namespace hora::internal {

/// Where a rank's tensor lies: one of its windows, and the byte offset in it.
struct Location {
  std::uint32_t window = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
  bool operator==(const Location&) const = default;
};

/// The location of a rank that has joined and contributes nothing.
inline constexpr Location kNowhere{.window = UINT32_MAX, .reserved = 0, .offset = 0};

}  // namespace hora::internal
