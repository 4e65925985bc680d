/// Frames of a connection, and the encryption of one direction of one: who lacks its key can
/// neither read, add, change, reorder, repeat nor leave out a message unnoticed. That the last
/// messages are missing shows only by the connection's end.
///
/// As bytes: length of what follows (u32, lowest byte first), and the payload, sealed or as it is.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/token.h"

namespace hora::launch {

/// One end of a direction, which either seals or opens: libsodium's secretstream (XChaCha20 and
/// Poly1305). Move-only. Thread rule: one thread at a time.
class Seal {
 public:
  /// By which a sealed payload is longer.
  static constexpr std::size_t kMoreBytes = crypto_secretstream_xchacha20poly1305_ABYTES;

  /// The key is of this direction of this connection alone.
  explicit Seal(const SecretKey::Bytes& key);

  /// The payload to send next, encrypted.
  std::vector<std::byte> seal(std::span<const std::byte> payload);
  /// The next payload. After an error the connection has to be closed.
  tl::expected<std::vector<std::byte>, std::string> open(std::span<const std::byte> sealed);

 private:
  using State = crypto_secretstream_xchacha20poly1305_state;
  struct Erase {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Erase> state_;
};

/// Of one side of one connection.
struct SealPair {
  Seal send;
  Seal receive;
};

/// The bytes to send for this payload; without a seal as it is.
std::vector<std::byte> frame_of(std::span<const std::byte> payload, Seal* seal);

/// Reads one frame after the other. It asks for exactly the bytes of the frame, so that what
/// follows the last one stays in the connection for its next reader.
class FrameParser {
 public:
  /// Longer payloads are refused before memory is taken for them.
  explicit FrameParser(std::size_t longest) : longest_(longest + Seal::kMoreBytes) {}

  /// How many bytes take() needs next; at least 1.
  std::size_t wants() const { return length_.value_or(kLengthBytes); }
  /// Takes exactly wants() bytes. Returns the payload when a frame ends. `seal`: null for none.
  /// After an error the connection has to be closed.
  tl::expected<std::optional<std::vector<std::byte>>, std::string> take(
      std::span<const std::byte> bytes, Seal* seal);

 private:
  static constexpr std::size_t kLengthBytes = 4;

  std::size_t longest_;  ///< with its seal
  std::optional<std::size_t> length_;
};

}  // namespace hora::launch
