/// Where tensors, slices and blocks begin in memory that ranks share or send.
#pragma once

#include <cstddef>

namespace hora::internal {

/// Of every one of them, in bytes: a cache line, and the widest vector register.
inline constexpr std::size_t kAlignment = 64;
constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace hora::internal
