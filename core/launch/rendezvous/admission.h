/// The two ends of a connection at a rendezvous, from the first byte on: handshake (handshake.h),
/// then sealed messages (messages.h). Bytes in, bytes out; sockets are elsewhere.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/handshake.h"
#include "core/launch/control/seal.h"
#include "core/launch/rendezvous/messages.h"

namespace hora::launch {

/// Node 0's end, until the node has told what it is. The token outlives it. Not to be moved, since
/// its reader refers to it. Thread rule: one thread at a time.
class Admission {
 public:
  explicit Admission(const SecretKey& token) : handshake_(token) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

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
  std::optional<SealedReader> reader_;
  std::optional<JoinRequest> request_;
};

/// The end of a node that joins node 0. The token outlives it. Not to be moved, as Admission.
/// Thread rule: one thread at a time.
class Joining {
 public:
  Joining(const SecretKey& token, JoinRequest request)
      : handshake_(token), request_(std::move(request)) {}
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

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
  std::optional<SealedReader> reader_;
  std::optional<JoinReply> reply_;
};

}  // namespace hora::launch
