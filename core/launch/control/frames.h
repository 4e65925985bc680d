/// Messages in a stream of bytes: each a length of four bytes (little endian), and as many bytes;
/// of a sealed connection (seal.h) the tag follows, as in sealed_frames.h. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/messages.h"
#include "core/launch/control/seal.h"

namespace hora::launch {

/// One message with its length, and its tag where there is a seal.
std::vector<std::byte> frame(const Message& message, Seal* seal = nullptr);

/// Takes bytes as they come, and gives whole messages.
class FrameReader {
 public:
  /// With a seal every message needs its tag.
  explicit FrameReader(std::optional<Seal> seal = std::nullopt) : seal_(std::move(seal)) {}

  void append(std::span<const std::byte> bytes);
  /// The next message; none where it is not complete. After an error nothing more can be read.
  tl::expected<std::optional<Message>, std::string> next();
  bool empty() const noexcept { return position_ == buffer_.size(); }

 private:
  std::optional<Seal> seal_;
  std::vector<std::byte> buffer_;
  std::size_t position_ = 0;  ///< read before it
};

}  // namespace hora::launch
