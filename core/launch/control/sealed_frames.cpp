#include "core/launch/control/sealed_frames.h"

#include <algorithm>

namespace hora::launch {
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
