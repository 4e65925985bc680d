/// Sealed messages as bytes of a connection: length of the payload (u32, lowest byte first),
/// payload, tag (32 bytes). The length is not authenticated by itself, but a wrong one moves
/// payload and tag.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/seal.h"

namespace hora::launch {

/// The bytes to send for this payload, the next of this seal.
std::vector<std::byte> sealed_frame(std::span<const std::byte> payload, Seal& seal);

/// Reads one frame after the other. It asks for exactly the bytes of the frame, so that what
/// follows the last one stays in the connection for its next reader. The seal outlives it.
class SealedReader {
 public:
  /// Longer payloads are refused before memory is taken for them.
  SealedReader(Seal& seal, std::size_t longest) : seal_(&seal), longest_(longest) {}

  /// How many bytes take() needs next; at least 1.
  std::size_t wants() const;
  /// Of exactly wants() bytes: a payload when a frame ends, else nothing. After an error the
  /// connection has to be closed.
  tl::expected<std::optional<std::vector<std::byte>>, std::string> take(
      std::span<const std::byte> bytes);

 private:
  Seal* seal_;
  std::size_t longest_;
  std::optional<std::size_t> length_;
};

}  // namespace hora::launch
