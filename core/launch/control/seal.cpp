#include "core/launch/control/seal.h"

#include <cstdint>

namespace hora::launch {
namespace {

const unsigned char* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

unsigned char* memory_of(std::vector<std::byte>& bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace

/// Both ends begin with one header, which need not be random, since the key is used once: what
/// *_init_pull() makes of key and header is also the state in which the other end pushes.
Seal::Seal(const SecretKey::Bytes& key) : state_(new State) {
  constexpr unsigned char kHeader[crypto_secretstream_xchacha20poly1305_HEADERBYTES] = {};
  static_assert(sizeof key == crypto_secretstream_xchacha20poly1305_KEYBYTES);
  ::crypto_secretstream_xchacha20poly1305_init_pull(state_.get(), kHeader, data_of(key));
}

void Seal::Erase::operator()(State* state) const {
  ::sodium_memzero(state, sizeof *state);
  delete state;
}

std::vector<std::byte> Seal::seal(std::span<const std::byte> payload) {
  std::vector<std::byte> sealed(payload.size() + kMoreBytes);
  ::crypto_secretstream_xchacha20poly1305_push(state_.get(), memory_of(sealed), nullptr,
                                               data_of(payload), payload.size(), nullptr, 0, 0);
  return sealed;
}

tl::expected<std::vector<std::byte>, std::string> Seal::open(std::span<const std::byte> sealed) {
  std::vector<std::byte> payload(sealed.size() < kMoreBytes ? 0 : sealed.size() - kMoreBytes);
  if (::crypto_secretstream_xchacha20poly1305_pull(state_.get(), memory_of(payload), nullptr,
                                                   nullptr, data_of(sealed), sealed.size(), nullptr,
                                                   0) != 0) {
    return tl::unexpected(
        std::string("a message without the right seal: it was changed on its way, or is not its"));
  }
  return payload;
}

std::vector<std::byte> frame_of(std::span<const std::byte> payload, Seal* seal) {
  const std::vector<std::byte> sealed =
      seal == nullptr ? std::vector<std::byte>() : seal->seal(payload);
  if (seal != nullptr) payload = sealed;
  std::vector<std::byte> frame;
  frame.reserve(sizeof(std::uint32_t) + payload.size());
  for (std::size_t i = 0; i < sizeof(std::uint32_t); ++i) {
    frame.push_back(static_cast<std::byte>((payload.size() >> (8 * i)) & 0xff));
  }
  frame.insert(frame.end(), payload.begin(), payload.end());
  return frame;
}

tl::expected<std::optional<std::vector<std::byte>>, std::string> FrameParser::take(
    std::span<const std::byte> bytes, Seal* seal) {
  if (bytes.size() != wants()) return tl::unexpected(std::string("a frame is cut off"));
  if (length_) {
    length_.reset();
    if (seal != nullptr) return seal->open(bytes);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }
  std::size_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::size_t>(bytes[i]) << (8 * i);
  }
  if (length == 0 || length > longest_) {
    return tl::unexpected("a message of " + std::to_string(length) + " bytes; the most is " +
                          std::to_string(longest_));
  }
  length_ = length;
  return std::nullopt;
}

}  // namespace hora::launch
