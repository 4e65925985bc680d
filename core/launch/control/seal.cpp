#include "core/launch/control/seal.h"

#include <algorithm>
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

namespace {

constexpr std::size_t kLengthBytes = 4, kTagBytes = sizeof(Seal::Tag);

}  // namespace

std::vector<std::byte> sealed_frame(std::span<const std::byte> payload, Seal& seal) {
  std::vector<std::byte> frame;
  frame.reserve(kLengthBytes + payload.size() + kTagBytes);
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    frame.push_back(static_cast<std::byte>((payload.size() >> (8 * i)) & 0xff));
  }
  frame.insert(frame.end(), payload.begin(), payload.end());
  const Seal::Tag tag = seal.tag(payload);
  frame.insert(frame.end(), tag.begin(), tag.end());
  return frame;
}

std::size_t SealedReader::wants() const {
  return length_ ? *length_ + kTagBytes : kLengthBytes;
}

tl::expected<std::optional<std::vector<std::byte>>, std::string> SealedReader::take(
    std::span<const std::byte> bytes) {
  if (bytes.size() != wants()) return tl::unexpected(std::string("a frame is cut off"));
  if (!length_) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length |= std::to_integer<std::size_t>(bytes[i]) << (8 * i);
    }
    if (length > longest_) {
      return tl::unexpected("it sends a message of " + std::to_string(length) +
                            " bytes, where at most " + std::to_string(longest_) + " are expected");
    }
    length_ = length;
    return std::nullopt;
  }
  const auto payload = bytes.first(*length_);
  Seal::Tag tag;
  std::ranges::copy(bytes.subspan(*length_), tag.begin());
  length_.reset();
  if (!seal_->accept(payload, tag)) {
    return tl::unexpected(std::string("a message was changed on its way, or is not its"));
  }
  return std::vector<std::byte>(payload.begin(), payload.end());
}

}  // namespace hora::launch
