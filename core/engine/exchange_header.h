/// The header that a rank publishes in its own window about its part of an exchange.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <vector>

#include "core/base/checked.h"
#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// Followed by `count` extents.
struct ExchangeHeader {
  Location payload;   ///< where peers read the input (kNowhere: not at all); on a device unused
  Location expected;  ///< where the result will be if it is even, or kNowhere
  std::uint64_t bytes = 0;  ///< of the input
  std::uint64_t count = 0;
  std::uint32_t room = 0;  ///< of ResultRoom
  std::uint32_t unused = 0;

  static std::size_t bytes_for(std::size_t extents) {
    return sizeof(ExchangeHeader) + extents * sizeof(std::int64_t);
  }
  static void write(std::byte* memory, Location payload, Location expected, std::size_t bytes,
                    std::span<const std::int64_t> extents) {
    new (memory) ExchangeHeader{payload, expected, bytes, extents.size(), 0, 0};
    std::memcpy(memory + sizeof(ExchangeHeader), extents.data(), extents.size_bytes());
  }
  /// Of a header that this rank has written.
  static std::span<const std::int64_t> extents_of(const std::byte* memory) {
    return {reinterpret_cast<const std::int64_t*>(memory + sizeof(ExchangeHeader)),
            static_cast<std::size_t>(reinterpret_cast<const ExchangeHeader*>(memory)->count)};
  }
  /// In a header that ExchangePart has found valid.
  static std::uint32_t& room_of(std::byte* memory) {
    return reinterpret_cast<ExchangeHeader*>(memory)->room;
  }
};

/// A header with `extents` extents, which stay where they are: none is negative, and together they
/// are rows of `row_bytes` bytes in an input of `bytes`. Throws Error(transport) for any other.
struct ExchangePart {
  ExchangeHeader header;
  std::span<const std::int64_t> extents;

  ExchangePart(const std::byte* memory, std::size_t count, std::size_t row_bytes, int rank) {
    BoundedReader reader({memory, ExchangeHeader::bytes_for(count)},
                         {"the header of an exchange", rank});
    header = reader.take<ExchangeHeader>();
    const std::span<const std::byte> rest = reader.take_bytes(count * sizeof(std::int64_t));
    if (reinterpret_cast<std::uintptr_t>(rest.data()) % alignof(std::int64_t) != 0) {
      reader.refuse("it is misaligned");
    }
    extents = {reinterpret_cast<const std::int64_t*>(rest.data()), count};
    Checked rows = 0;
    for (const std::int64_t extent : extents) rows = rows + extent;
    const Checked bytes = rows * row_bytes;
    if (header.count != count || !bytes.at_most(kMaxBytes) || bytes.value() != header.bytes) {
      reader.refuse("its " + std::to_string(header.count) + " extents are not those of " +
                    std::to_string(header.bytes) + " bytes in rows of " +
                    std::to_string(row_bytes));
    }
  }
};

}  // namespace hora::internal
