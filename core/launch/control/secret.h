/// The secret that all launchers of a job share, by which they recognise each other, and the
/// encryption of a connection by it.
///
/// The token comes from a file (mode 0600 or stricter, the user's own) or from the environment
/// variable HORARUN_TOKEN; it is never sent, printed or logged, nor does it appear on a command
/// line. A token should be random: with one that can be guessed, who has seen the begin of a
/// connection can find it by trial.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

inline constexpr const char* kTokenVariable = "HORARUN_TOKEN";
inline constexpr std::size_t kShortestToken = 16;
inline constexpr std::size_t kLongestToken = 4096;

using Bytes = std::vector<std::byte>;

/// Zeroes memory at its end.
struct Erase {
  template <class T>
  void operator()(T* secret) const {
    ::sodium_memzero(secret, sizeof *secret);
    delete secret;
  }
};
template <class T>
using Secret = std::unique_ptr<T, Erase>;

using KeyBytes = std::array<unsigned char, crypto_secretstream_xchacha20poly1305_KEYBYTES>;
using SecretKey = Secret<KeyBytes>;

/// The key made from a token's text, without white space at its ends: at least kShortestToken
/// bytes. The error does not contain the text.
tl::expected<SecretKey, std::string> token_from_text(std::string_view text);

/// The key made from a file's content. The file must be a regular one of this user, unreadable for
/// others; a link is followed to such a file, as secrets are mounted into containers.
tl::expected<SecretKey, std::string> token_from_file(const std::string& path);

/// From the file, where one is named, else from the value of HORARUN_TOKEN (null: not set). With
/// neither, the error says how to make a token.
tl::expected<SecretKey, std::string> load_token(const std::optional<std::string>& file,
                                                const char* variable);

/// The text of a new random token: 64 hexadecimal digits.
std::string new_token_text();

/// One end of a direction of a connection, which either seals or opens: libsodium's secretstream
/// (XChaCha20 and Poly1305). Who lacks its key can neither read, add, change, reorder, repeat nor
/// leave out a message unnoticed; that the last ones are missing shows only by the connection's
/// end. Move-only. Thread rule: one thread at a time.
class Seal {
 public:
  /// By which a sealed payload is longer.
  static constexpr std::size_t kMoreBytes = crypto_secretstream_xchacha20poly1305_ABYTES;

  /// The key is of this direction of this connection alone.
  explicit Seal(const KeyBytes& key);

  /// The payload to send next, encrypted.
  Bytes seal(std::span<const std::byte> payload);
  /// The next payload; nothing where it was changed, or sealed by another key.
  std::optional<Bytes> open(std::span<const std::byte> sealed);

 private:
  Secret<crypto_secretstream_xchacha20poly1305_state> state_;
};

/// One side's part of one connection.
struct SealPair {
  Seal send;
  Seal receive;
};

/// The first bytes of each side of a connection: a name and version of this protocol, and 32
/// random bytes.
using Greeting = std::array<std::byte, 40>;
Greeting fresh_greeting();
/// Whether it is a greeting of this version.
bool is_greeting(std::span<const std::byte> bytes);

/// The seals of one side of a connection, which has made it or not (`connects`). Their keys depend
/// on the token, the direction, and both greetings: who opens a message knows that its sender has
/// the token, and nothing recorded can be repeated, or sent back to its sender.
SealPair seals_of(const SecretKey& token, bool connects, const Greeting& own,
                  const Greeting& other);

}  // namespace hora::launch
