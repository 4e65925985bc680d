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

using FrameLength = std::uint32_t;
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
  if (!wire::VerifyEnvelopeBuffer(verifier)) {
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
  const auto length = static_cast<FrameLength>(payload.size());
  Bytes frame(sizeof length + payload.size());
  std::memcpy(frame.data(), &length, sizeof length);
  std::ranges::copy(payload, frame.begin() + sizeof length);
  return frame;
}

tl::expected<std::optional<Bytes>, std::string> FrameReader::read(int descriptor) {
  while (true) {
    FrameLength length = 0;
    std::size_t whole = sizeof length;
    if (filled_ >= sizeof length) {
      std::memcpy(&length, bytes_.data(), sizeof length);
      if (length == 0 || length > longest_) {
        return tl::unexpected(
            fmt::format("it has sent something else than messages: one of {} bytes; the most is {}",
                        length, longest_));
      }
      whole += length;
      if (filled_ == whole) {
        filled_ = 0;
        return Bytes(bytes_.begin() + sizeof length,
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
