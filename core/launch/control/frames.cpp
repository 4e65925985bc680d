#include "core/launch/control/frames.h"

#include <algorithm>
#include <cstdint>

#include "core/launch/control/sealed_frames.h"

namespace hora::launch {
namespace {

constexpr std::size_t kLengthBytes = 4, kTagBytes = sizeof(Seal::Tag);

}  // namespace

std::vector<std::byte> frame(const Message& message, Seal* seal) {
  const std::vector<std::byte> body = encode(message);
  if (seal != nullptr) return sealed_frame(body, *seal);
  std::vector<std::byte> bytes;
  bytes.reserve(kLengthBytes + body.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<std::byte>(body.size() >> (8 * i)));
  }
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

void FrameReader::append(std::span<const std::byte> bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(position_));
  position_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

tl::expected<std::optional<Message>, std::string> FrameReader::next() {
  const std::span<const std::byte> left = std::span(buffer_).subspan(position_);
  if (left.size() < kLengthBytes) return std::nullopt;
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::size_t>(left[i]) << (8 * i);
  }
  if (length > kMostMessageBytes) {
    return tl::unexpected("a message of " + std::to_string(length) + " bytes; the most is " +
                          std::to_string(kMostMessageBytes));
  }
  const std::size_t whole = kLengthBytes + length + (seal_ ? kTagBytes : 0);
  if (left.size() < whole) return std::nullopt;
  // FlatBuffers wants its own alignment.
  const std::vector<std::byte> body(
      left.begin() + kLengthBytes,
      left.begin() + static_cast<std::ptrdiff_t>(kLengthBytes + length));
  if (seal_) {
    Seal::Tag tag;
    std::ranges::copy(left.subspan(kLengthBytes + length, kTagBytes), tag.begin());
    if (!seal_->accept(body, tag)) {
      return tl::unexpected(
          std::string("a message without the right seal: it was changed on its way"));
    }
  }
  position_ += whole;
  return decode(body).map([](Message&& message) { return std::optional(std::move(message)); });
}

}  // namespace hora::launch
