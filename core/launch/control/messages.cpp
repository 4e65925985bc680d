#include "core/launch/control/messages.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

namespace hora::launch {
namespace {

constexpr std::size_t kLengthBytes = 4;
/// How much is allocated before its bytes have arrived.
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;

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

Bytes encode(const Message& message) {
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

Bytes frame_of(std::span<const std::byte> payload, Seal* seal) {
  const Bytes sealed = seal == nullptr ? Bytes() : seal->seal(payload);
  if (seal != nullptr) payload = sealed;
  Bytes frame;
  frame.reserve(kLengthBytes + payload.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    frame.push_back(static_cast<std::byte>((payload.size() >> (8 * i)) & 0xff));
  }
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

tl::expected<std::optional<Bytes>, std::string> FrameReader::read(int descriptor) {
  while (true) {
    std::size_t whole = kLengthBytes;
    if (filled_ >= kLengthBytes) {
      std::size_t length = 0;
      for (std::size_t i = 0; i < kLengthBytes; ++i) {
        length |= std::to_integer<std::size_t>(bytes_[i]) << (8 * i);
      }
      if (length == 0 || length > longest_) {
        return tl::unexpected(
            fmt::format("it has sent something else than messages: one of {} bytes; the most is {}",
                        length, longest_));
      }
      whole += length;
      if (filled_ == whole) {
        filled_ = 0;
        return Bytes(bytes_.begin() + kLengthBytes,
                     bytes_.begin() + static_cast<std::ptrdiff_t>(whole));
      }
    }
    bytes_.resize(std::min(whole, filled_ + kReadAtOnce));
    const ssize_t count = ::read(descriptor, bytes_.data() + filled_, bytes_.size() - filled_);
    if (count > 0) {
      filled_ += static_cast<std::size_t>(count);
    } else if (count == 0) {
      return tl::unexpected<std::string>("it has closed the connection");
    } else if (errno == EAGAIN) {
      return std::nullopt;
    } else if (errno != EINTR) {
      return tl::unexpected<std::string>(std::strerror(errno));
    }
  }
}

}  // namespace hora::launch
