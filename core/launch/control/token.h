/// The secret that all launchers of a job share, by which they recognise each other.
///
/// It comes from a file (mode 0600 or stricter, the user's own) or from the environment variable
/// HORARUN_TOKEN; it is never sent, printed or logged, nor does it appear on a command line. A
/// token should be random: with one that can be guessed, who has seen a handshake can find it by
/// trial.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace hora::launch {

inline constexpr const char* kTokenVariable = "HORARUN_TOKEN";
inline constexpr std::size_t kShortestToken = 16;
inline constexpr std::size_t kLongestToken = 4096;

/// 32 secret bytes; zeroed at its end. Move-only. Thread rule: one thread at a time.
class SecretKey {
 public:
  using Bytes = std::array<std::byte, 32>;

  explicit SecretKey(const Bytes& bytes) noexcept : bytes_(bytes) {}
  SecretKey(SecretKey&& other) noexcept;
  SecretKey& operator=(SecretKey&& other) noexcept;
  ~SecretKey();

  /// HMAC-SHA-512-256 (libsodium's crypto_auth) of the parts, laid end to end.
  Bytes authenticate(std::span<const std::span<const std::byte>> parts) const;
  /// Whether `tag` is what authenticate() gives; takes the same time wherever they differ.
  bool verify(std::span<const std::span<const std::byte>> parts, const Bytes& tag) const;

 private:
  Bytes bytes_;
};

/// Fresh random bytes, which a handshake uses once.
using Nonce = std::array<std::byte, 32>;
Nonce fresh_nonce();

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

}  // namespace hora::launch
