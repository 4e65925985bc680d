/// The two ends of a connection at a rendezvous, from the first byte on: mutual authentication by
/// the token, which is never sent, then sealed messages (messages.h). Bytes in, bytes out; sockets
/// are elsewhere.
///
/// Bytes of the handshake, in this order (C the side that connects, S the side that listens, K the
/// token's key):
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
#include <vector>

#include "core/launch/control/seal.h"
#include "core/launch/control/token.h"
#include "core/launch/rendezvous/messages.h"

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

/// Node 0's end, until the node has told what it is. The token outlives it. Thread rule: one thread
/// at a time.
class Admission {
 public:
  explicit Admission(const SecretKey& token) : handshake_(token) {}

  /// How many bytes take() needs next; 0 when there is a request.
  std::size_t wants() const;
  /// Of exactly wants() bytes: what to send. After an error, which says what is wrong with the
  /// other side, the connection has to be closed.
  tl::expected<std::vector<std::byte>, std::string> take(std::span<const std::byte> bytes);

  /// Whether the other side has proved that it has the token.
  bool authenticated() const { return seals_.has_value(); }
  const std::optional<JoinRequest>& request() const { return request_; }
  /// Once, when there is a request.
  SealPair take_seals() { return std::move(*seals_); }

 private:
  ServerHandshake handshake_;
  bool greeted_ = false;
  std::optional<SealPair> seals_;
  FrameParser parser_{kLongestRequest};
  std::optional<JoinRequest> request_;
};

/// The end of a node that joins node 0. The token outlives it. Thread rule: one thread at a time.
class Joining {
 public:
  Joining(const SecretKey& token, JoinRequest request)
      : handshake_(token), request_(std::move(request)) {}

  /// What to send first.
  std::vector<std::byte> hello() const;
  std::size_t wants() const;
  /// Of exactly wants() bytes: what to send. Errors as Admission's.
  tl::expected<std::vector<std::byte>, std::string> take(std::span<const std::byte> bytes);

  /// Whether node 0 has proved that it has the token.
  bool authenticated() const { return seals_.has_value(); }
  /// The reply that the last take() has ended, if it has.
  const std::optional<JoinReply>& reply() const { return reply_; }
  /// Once, after the last reply.
  SealPair take_seals() { return std::move(*seals_); }

 private:
  ClientHandshake handshake_;
  JoinRequest request_;
  std::optional<SealPair> seals_;
  FrameParser parser_{kLongestReply};
  std::optional<JoinReply> reply_;
};

}  // namespace hora::launch
