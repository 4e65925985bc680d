#include "core/launch/control/messages.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/launch/control/seal.h"

namespace hora::launch {
namespace {

/// The alternative of Message that `body` holds.
template <std::size_t I = 0>
std::optional<Message> alternative(wire::BodyUnion& body) {
  if constexpr (I == std::variant_size_v<Message>) {
    return std::nullopt;
  } else {
    using Body = std::variant_alternative_t<I, Message>;
    if (body.type != wire::BodyUnionTraits<Body>::enum_value) return alternative<I + 1>(body);
    return Message(std::move(*static_cast<Body*>(body.value)));
  }
}

/// FlatBuffers' verifier sees to the alignment of a vector's length, not of its elements.
bool elements_are_aligned(const wire::Envelope& envelope) {
  const wire::ArrivalsSeen* arrivals = envelope.body_as_ArrivalsSeen();
  if (arrivals == nullptr || arrivals->rows() == nullptr) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(arrivals->rows()->Data());
  return address % alignof(wire::ArrivalsRow) == 0;
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  wire::EnvelopeT envelope;
  std::visit([&](auto body) { envelope.body.Set(std::move(body)); }, message);
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::Envelope::Pack(builder, &envelope));
  const auto bytes = std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()));
  return {bytes.begin(), bytes.end()};
}

tl::expected<Message, std::string> decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostMessageBytes) return tl::unexpected<std::string>("it is too long");
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  if (!wire::VerifyEnvelopeBuffer(verifier) ||
      !elements_are_aligned(*wire::GetEnvelope(bytes.data()))) {
    return tl::unexpected<std::string>("it is not a message of this version of horarun");
  }
  wire::EnvelopeT envelope;
  wire::GetEnvelope(bytes.data())->UnPackTo(&envelope);
  auto message = alternative(envelope.body);
  if (!message) return tl::unexpected<std::string>("it has an unknown kind");
  return std::move(*message);
}

namespace {

constexpr std::size_t kLengthBytes = 4, kTagBytes = sizeof(Seal::Tag);

}  // namespace

std::vector<std::byte> frame(const Message& message, Seal* seal) {
  const std::vector<std::byte> body = encode(message);
  if (seal != nullptr) return sealed_frame(body, *seal);
  std::vector<std::byte> bytes;
  bytes.reserve(kLengthBytes + body.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<std::byte>(body.size() >> (8 * i)));
  }
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

void FrameReader::append(std::span<const std::byte> bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(position_));
  position_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

tl::expected<std::optional<Message>, std::string> FrameReader::next() {
  const std::span<const std::byte> left = std::span(buffer_).subspan(position_);
  if (left.size() < kLengthBytes) return std::nullopt;
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::size_t>(left[i]) << (8 * i);
  }
  if (length > kMostMessageBytes) {
    return tl::unexpected("a message of " + std::to_string(length) + " bytes; the most is " +
                          std::to_string(kMostMessageBytes));
  }
  const std::size_t whole = kLengthBytes + length + (seal_ ? kTagBytes : 0);
  if (left.size() < whole) return std::nullopt;
  // FlatBuffers wants its own alignment.
  const std::vector<std::byte> body(
      left.begin() + kLengthBytes,
      left.begin() + static_cast<std::ptrdiff_t>(kLengthBytes + length));
  if (seal_) {
    Seal::Tag tag;
    std::ranges::copy(left.subspan(kLengthBytes + length, kTagBytes), tag.begin());
    if (!seal_->accept(body, tag)) {
      return tl::unexpected(
          std::string("a message without the right seal: it was changed on its way"));
    }
  }
  position_ += whole;
  return decode(body).map([](Message&& message) { return std::optional(std::move(message)); });
}

}  // namespace hora::launch
