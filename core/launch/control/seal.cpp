#include "core/launch/control/seal.h"

#include <utility>

namespace hora::launch {
namespace {

/// What stands before the payload: the direction, and the sequence number, lowest byte first.
std::array<std::byte, 9> prefix_of(Direction direction, std::uint64_t sequence) {
  std::array<std::byte, 9> prefix{};
  prefix[0] = static_cast<std::byte>(direction);
  for (std::size_t i = 1; i < prefix.size(); ++i, sequence >>= 8) {
    prefix[i] = static_cast<std::byte>(sequence & 0xff);
  }
  return prefix;
}

}  // namespace

Seal::Seal(SecretKey key, Direction direction) noexcept
    : key_(std::move(key)), direction_(direction) {}

Seal::Tag Seal::tag(std::span<const std::byte> payload) {
  const auto prefix = prefix_of(direction_, sequence_++);
  const std::array<std::span<const std::byte>, 2> parts{prefix, payload};
  return key_.authenticate(parts);
}

bool Seal::accept(std::span<const std::byte> payload, const Tag& tag) {
  const auto prefix = prefix_of(direction_, sequence_);
  const std::array<std::span<const std::byte>, 2> parts{prefix, payload};
  if (broken_ || !key_.verify(parts, tag)) {
    broken_ = true;
    return false;
  }
  ++sequence_;
  return true;
}

}  // namespace hora::launch
