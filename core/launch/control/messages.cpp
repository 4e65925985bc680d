#include "core/launch/control/messages.h"

#include <cstdint>
#include <optional>
#include <utility>

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

std::vector<std::byte> frame(const Message& message, Seal* seal) {
  return frame_of(encode(message), seal);
}

void FrameReader::append(std::span<const std::byte> bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(position_));
  position_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

tl::expected<std::optional<Message>, std::string> FrameReader::next() {
  while (buffer_.size() - position_ >= parser_.wants()) {
    const auto bytes = std::span<const std::byte>(buffer_).subspan(position_, parser_.wants());
    position_ += bytes.size();
    const auto payload = parser_.take(bytes, seal_ ? &*seal_ : nullptr);
    if (!payload) return tl::unexpected(payload.error());
    if (*payload) return decode(**payload);
  }
  return std::nullopt;
}

}  // namespace hora::launch
