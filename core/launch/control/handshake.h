/// Mutual authentication of the two sides of a connection by their token, which is never sent:
/// values in, values out.
///
/// Bytes, in this order (C the side that connects, S the side that listens, K the token's key):
///   C -> S  "hora-run", version (u32, lowest byte first), C's nonce (32)                  44 bytes
///   S -> C  S's nonce (32), HMAC(K, "server" | C's hello | S's nonce) (32)                64 bytes
///   C -> S  HMAC(K, "client" | C's hello | S's nonce) (32)                                32 bytes
/// Each side has put fresh random bytes under the other's HMAC, so nothing recorded can be
/// repeated, and the two labels differ, so nothing can be reflected (the scheme of ISO/IEC 9798-4,
/// mutual authentication in three passes). The keys of the seals are HMAC(K, label | C's hello |
/// S's nonce).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>

#include "core/launch/control/seal.h"
#include "core/launch/control/token.h"

namespace hora::launch {

inline constexpr std::size_t kClientHelloBytes = 44;
inline constexpr std::size_t kServerHelloBytes = 64;
inline constexpr std::size_t kClientProofBytes = 32;

using ClientHello = std::array<std::byte, kClientHelloBytes>;
using ServerHello = std::array<std::byte, kServerHelloBytes>;
using ClientProof = std::array<std::byte, kClientProofBytes>;

/// The token outlives both classes. Thread rule: one thread at a time.
class ClientHandshake {
 public:
  explicit ClientHandshake(const SecretKey& token, const Nonce& nonce = fresh_nonce());

  const ClientHello& hello() const { return hello_; }
  /// The proof to send, or why this is no server with this token. Of kServerHelloBytes; once.
  tl::expected<ClientProof, std::string> answer(std::span<const std::byte> server_hello);
  /// After answer() has given a proof.
  SealPair seals() const;

 private:
  const SecretKey& token_;
  ClientHello hello_;
  std::optional<Nonce> server_nonce_;
};

class ServerHandshake {
 public:
  explicit ServerHandshake(const SecretKey& token, const Nonce& nonce = fresh_nonce());

  /// What to send, or why this is no hello. Of kClientHelloBytes; once.
  tl::expected<ServerHello, std::string> answer(std::span<const std::byte> client_hello);
  /// Why the client does not have the token, if it has not. Of kClientProofBytes; after answer().
  tl::expected<void, std::string> finish(std::span<const std::byte> client_proof);
  /// After finish() has found no error.
  SealPair seals() const;

 private:
  const SecretKey& token_;
  Nonce nonce_;
  std::optional<ClientHello> hello_;
  bool finished_ = false;
};

}  // namespace hora::launch
