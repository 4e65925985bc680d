/// What a rank tells its node about its part of an exchange, in its own window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <vector>

#include "core/board/board.h"

namespace hora {

/// Followed by `count` extents.
struct ExchangeHeader {
  Location payload;         ///< where my input lies (kNowhere: I push); on a device unused
  Location expected;        ///< where my result will be if it is even, or kNowhere
  std::uint64_t bytes = 0;  ///< of my input
  std::uint64_t count = 0;

  static std::size_t bytes_for(std::size_t extents) {
    return sizeof(ExchangeHeader) + extents * sizeof(std::int64_t);
  }
  static void write(std::byte* memory, Location payload, Location expected, std::size_t bytes,
                    std::span<const std::int64_t> extents) {
    new (memory) ExchangeHeader{payload, expected, bytes, extents.size()};
    std::memcpy(memory + sizeof(ExchangeHeader), extents.data(), extents.size_bytes());
  }
  static const ExchangeHeader& at(const std::byte* memory) {
    return *reinterpret_cast<const ExchangeHeader*>(memory);
  }
  std::span<const std::int64_t> extents() const {
    return {reinterpret_cast<const std::int64_t*>(this + 1), static_cast<std::size_t>(count)};
  }
};

}  // namespace hora
