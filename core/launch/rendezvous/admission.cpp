#include "core/launch/rendezvous/admission.h"

#include <utility>

namespace hora::launch {
namespace {

using Bytes = std::vector<std::byte>;
using BytesOrError = tl::expected<Bytes, std::string>;

}  // namespace

std::size_t Admission::wants() const {
  if (request_) return 0;
  if (reader_) return reader_->wants();
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
    reader_.emplace(seals_->receive, kLongestRequest);
    return Bytes();
  }
  const auto payload = reader_->take(bytes);
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
  return reader_ ? reader_->wants() : kServerHelloBytes;
}

BytesOrError Joining::take(std::span<const std::byte> bytes) {
  reply_.reset();
  if (!seals_) {
    const auto proof = handshake_.answer(bytes);
    if (!proof) return tl::unexpected(proof.error());
    seals_.emplace(handshake_.seals());
    reader_.emplace(seals_->receive, kLongestReply);
    Bytes answer(proof->begin(), proof->end());
    const Bytes request = sealed_frame(encode(request_), seals_->send);
    answer.insert(answer.end(), request.begin(), request.end());
    return answer;
  }
  const auto payload = reader_->take(bytes);
  if (!payload) return tl::unexpected(payload.error());
  if (*payload) {
    auto reply = decode_reply(**payload);
    if (!reply) return tl::unexpected(reply.error());
    reply_ = std::move(*reply);
  }
  return Bytes();
}

}  // namespace hora::launch
