/// Authentication of the messages of one direction of one connection: who lacks the token can
/// neither add, change, reorder, repeat, reflect nor leave out a message unnoticed. Messages are
/// not encrypted: they carry nothing secret.
///
/// As bytes of a connection: length of the payload (u32, lowest byte first), payload, tag (32
/// bytes). The length is not authenticated by itself, but a wrong one moves payload and tag.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/token.h"

namespace hora::launch {

/// The server is the side that listens, node 0.
enum class Direction : std::uint8_t { client_to_server = 0, server_to_client = 1 };

/// Either seals what is sent, or checks what is received. A tag is HMAC-SHA-512-256 by the
/// connection's key over (direction, sequence number of 64 bits, payload), so a cut-off message or
/// a message out of its turn has another tag. That the last messages of a connection are missing
/// shows only by its end. Move-only. Thread rule: one thread at a time.
class Seal {
 public:
  using Tag = SecretKey::Bytes;

  Seal(SecretKey key, Direction direction) noexcept;

  /// The tag to send with this payload, the next of this direction.
  Tag tag(std::span<const std::byte> payload);

  /// Whether this is the next payload of this direction, unchanged. After a false all later ones
  /// are refused, too: the connection has to be closed.
  [[nodiscard]] bool accept(std::span<const std::byte> payload, const Tag& tag);

 private:
  SecretKey key_;
  std::uint64_t sequence_ = 0;
  Direction direction_;
  bool broken_ = false;
};

/// Of one side of one connection.
struct SealPair {
  Seal send;
  Seal receive;
};

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
