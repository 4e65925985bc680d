/// Authentication of the messages of one direction of one connection: who lacks the token can
/// neither add, change, reorder, repeat, reflect nor leave out a message unnoticed. Messages are
/// not encrypted: they carry nothing secret.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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

}  // namespace hora::launch
