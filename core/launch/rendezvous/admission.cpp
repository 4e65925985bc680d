#include "core/launch/rendezvous/admission.h"

#include <hora/error.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace hora::launch {
namespace {

constexpr std::string_view kMagic = "hora-run";
constexpr std::size_t kVersionAt = kMagic.size();
constexpr std::size_t kNonceAt = kVersionAt + 4;
constexpr std::uint32_t kProtocolVersion = 2;
static_assert(kNonceAt + sizeof(Nonce) == kClientHelloBytes);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

ClientHello make_hello(const Nonce& nonce) {
  ClientHello hello;
  std::ranges::copy(bytes_of(kMagic), hello.begin());
  for (std::size_t i = 0; i < 4; ++i) {
    hello[kVersionAt + i] = static_cast<std::byte>((kProtocolVersion >> (8 * i)) & 0xff);
  }
  std::ranges::copy(nonce, hello.begin() + kNonceAt);
  return hello;
}

std::uint32_t version_of(std::span<const std::byte> hello) {
  std::uint32_t version = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    version |= std::to_integer<std::uint32_t>(hello[kVersionAt + i]) << (8 * i);
  }
  return version;
}

using Parts = std::array<std::span<const std::byte>, 3>;

Parts parts_of(std::string_view label, const ClientHello& hello, const Nonce& nonce) {
  return {bytes_of(label), hello, nonce};
}

// Of one length: no label with a hello can be read as another label with another hello.
constexpr std::string_view kServerLabel = "hora proof of server",
                           kClientLabel = "hora proof of client",
                           kToServer = "hora seal: to server", kToClient = "hora seal: to client";
static_assert(kServerLabel.size() == kClientLabel.size() &&
              kServerLabel.size() == kToServer.size() && kServerLabel.size() == kToClient.size());

Seal make_seal(const SecretKey& token, std::string_view label, const ClientHello& hello,
               const Nonce& nonce) {
  return Seal(token.authenticate(parts_of(label, hello, nonce)));
}

tl::unexpected<std::string> refused(std::string why) {
  return tl::unexpected(std::move(why));
}

constexpr char kOtherToken[] =
    "it has another token than this node (HORARUN_TOKEN or --token-file), where all need the same";

[[noreturn]] void refuse_order() {
  throw Error(ErrorCode::invalid_use, "a handshake's seals exist only after both proofs");
}

}  // namespace

ClientHandshake::ClientHandshake(const SecretKey& token, const Nonce& nonce)
    : token_(token), hello_(make_hello(nonce)) {}

tl::expected<ClientProof, std::string> ClientHandshake::answer(
    std::span<const std::byte> server_hello) {
  if (server_hello.size() != kServerHelloBytes || server_nonce_) {
    return refused("its answer has another length than a horarun's");
  }
  Nonce nonce;
  SecretKey::Bytes tag;
  std::ranges::copy(server_hello.first(nonce.size()), nonce.begin());
  std::ranges::copy(server_hello.subspan(nonce.size()), tag.begin());
  if (!token_.verify(parts_of(kServerLabel, hello_, nonce), tag)) {
    return refused(std::string(kOtherToken) + "; or it is no horarun");
  }
  server_nonce_ = nonce;
  return token_.authenticate(parts_of(kClientLabel, hello_, nonce));
}

SealPair ClientHandshake::seals() const {
  if (!server_nonce_) refuse_order();
  return {make_seal(token_, kToServer, hello_, *server_nonce_),
          make_seal(token_, kToClient, hello_, *server_nonce_)};
}

ServerHandshake::ServerHandshake(const SecretKey& token, const Nonce& nonce)
    : token_(token), nonce_(nonce) {}

tl::expected<ServerHello, std::string> ServerHandshake::answer(
    std::span<const std::byte> client_hello) {
  if (client_hello.size() != kClientHelloBytes || hello_ ||
      !std::ranges::equal(client_hello.first(kMagic.size()), bytes_of(kMagic))) {
    return refused("it is no horarun: it begins with other bytes than a horarun's");
  }
  if (const std::uint32_t version = version_of(client_hello); version != kProtocolVersion) {
    return refused("its horarun uses version " + std::to_string(version) +
                   " of the rendezvous, this one version " + std::to_string(kProtocolVersion) +
                   "; install the same version of hora on all hosts");
  }
  hello_.emplace();
  std::ranges::copy(client_hello, hello_->begin());
  ServerHello reply;
  const SecretKey::Bytes tag = token_.authenticate(parts_of(kServerLabel, *hello_, nonce_));
  std::ranges::copy(tag, std::ranges::copy(nonce_, reply.begin()).out);
  return reply;
}

tl::expected<void, std::string> ServerHandshake::finish(std::span<const std::byte> client_proof) {
  if (!hello_ || finished_ || client_proof.size() != kClientProofBytes) {
    return refused("its proof has another length than a horarun's");
  }
  SecretKey::Bytes tag;
  std::ranges::copy(client_proof, tag.begin());
  if (!token_.verify(parts_of(kClientLabel, *hello_, nonce_), tag)) {
    return refused(kOtherToken);
  }
  finished_ = true;
  return {};
}

SealPair ServerHandshake::seals() const {
  if (!finished_) refuse_order();
  return {make_seal(token_, kToClient, *hello_, nonce_),
          make_seal(token_, kToServer, *hello_, nonce_)};
}

namespace {

using Bytes = std::vector<std::byte>;
using BytesOrError = tl::expected<Bytes, std::string>;

}  // namespace

std::size_t Admission::wants() const {
  if (request_) return 0;
  if (seals_) return parser_.wants();
  return greeted_ ? kClientProofBytes : kClientHelloBytes;
}

BytesOrError Admission::take(std::span<const std::byte> bytes) {
  if (!greeted_) {
    const auto hello = handshake_.answer(bytes);
    if (!hello) return tl::unexpected(hello.error());
    greeted_ = true;
    return Bytes(hello->begin(), hello->end());
  }
  if (!seals_) {
    if (const auto proved = handshake_.finish(bytes); !proved) {
      return tl::unexpected(proved.error());
    }
    seals_.emplace(handshake_.seals());
    return Bytes();
  }
  const auto payload = parser_.take(bytes, &seals_->receive);
  if (!payload) return tl::unexpected(payload.error());
  if (*payload) {
    auto request = decode_request(**payload);
    if (!request) return tl::unexpected(request.error());
    request_ = std::move(*request);
  }
  return Bytes();
}

Bytes Joining::hello() const {
  return {handshake_.hello().begin(), handshake_.hello().end()};
}

std::size_t Joining::wants() const {
  return seals_ ? parser_.wants() : kServerHelloBytes;
}

BytesOrError Joining::take(std::span<const std::byte> bytes) {
  reply_.reset();
  if (!seals_) {
    const auto proof = handshake_.answer(bytes);
    if (!proof) return tl::unexpected(proof.error());
    seals_.emplace(handshake_.seals());
    Bytes answer(proof->begin(), proof->end());
    const Bytes request = frame_of(encode(request_), &seals_->send);
    answer.insert(answer.end(), request.begin(), request.end());
    return answer;
  }
  const auto payload = parser_.take(bytes, &seals_->receive);
  if (!payload) return tl::unexpected(payload.error());
  if (*payload) {
    auto reply = decode_reply(**payload);
    if (!reply) return tl::unexpected(reply.error());
    reply_ = std::move(*reply);
  }
  return Bytes();
}

}  // namespace hora::launch
