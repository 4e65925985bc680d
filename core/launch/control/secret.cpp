#include "core/launch/control/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/launch/control/event_loop.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr std::string_view kMagic = "hora-run";
constexpr std::uint32_t kProtocolVersion = 3;

const unsigned char* bytes_at(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

unsigned char* memory_of(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void start_sodium() {
  static const bool started = ::sodium_init() >= 0;
  if (!started) {
    throw Error(ErrorCode::transport,
                "libsodium cannot start: this host gives no random numbers (/dev/urandom)");
  }
}

tl::unexpected<std::string> refuse(const std::string& path, const std::string& why) {
  return tl::unexpected(fmt::format("the token file {} cannot be used: {}", in_quotes(path), why));
}

tl::expected<void, std::string> check_private(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return refuse(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return refuse(path, "it is no regular file");
  if (status.st_uid != ::geteuid()) {
    return refuse(path, fmt::format("it belongs to user {}, not to this one, {}", status.st_uid,
                                    ::geteuid()));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return refuse(path, "others may read or change it; allow it to its user alone: chmod 600");
  }
  return {};
}

}  // namespace

SecretKey::Material SecretKey::derive(std::span<const std::span<const std::byte>> parts) const {
  start_sodium();
  Material key;
  crypto_generichash_state state;
  ::crypto_generichash_init(&state, bytes_at(*bytes_), bytes_->size(), key.size());
  for (const std::span<const std::byte> part : parts) {
    ::crypto_generichash_update(&state, bytes_at(part), part.size());
  }
  ::crypto_generichash_final(&state, memory_of(key), key.size());
  ::sodium_memzero(&state, sizeof state);
  return key;
}

tl::expected<SecretKey, std::string> token_from_text(std::string_view text) {
  start_sodium();
  const std::string_view token = trimmed(text);
  if (token.size() < kShortestToken || token.size() > kLongestToken) {
    return tl::unexpected(
        fmt::format("a token has {} to {} bytes, this one {}; make one by: openssl rand -hex 32",
                    kShortestToken, kLongestToken, token.size()));
  }
  SecretKey::Material key;
  const auto bytes = bytes_of(token), purpose = bytes_of("hora launcher's token, version 1");
  ::crypto_generichash(memory_of(key), key.size(), bytes_at(bytes), bytes.size(), bytes_at(purpose),
                       purpose.size());
  SecretKey secret(key);
  ::sodium_memzero(key.data(), key.size());
  return secret;
}

tl::expected<SecretKey, std::string> token_from_file(const std::string& path) {
  if (path.find('\0') != std::string::npos) return refuse(path, "its name holds a zero byte");
  // O_NONBLOCK: opening a FIFO does not wait for a writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) return refuse(path, std::strerror(errno));
  if (const auto is_private = check_private(file.get(), path); !is_private) {
    return tl::unexpected(is_private.error());
  }
  const Secret<std::array<char, kLongestToken + 1>> text(new std::array<char, kLongestToken + 1>);
  const ssize_t count = ::read(file.get(), text->data(), text->size());
  if (count < 0) return refuse(path, std::strerror(errno));
  auto token = token_from_text({text->data(), static_cast<std::size_t>(count)});
  if (!token) return refuse(path, token.error());
  return token;
}

tl::expected<SecretKey, std::string> load_token(const std::optional<std::string>& file,
                                                const char* variable) {
  if (file) return token_from_file(*file);
  if (variable == nullptr) {
    return tl::unexpected(fmt::format(
        "no token: the launchers of all nodes need the same secret, in a file of mode 0600 that an "
        "option names, or in the environment variable {}; make one by: openssl rand -hex 32",
        kTokenVariable));
  }
  return token_from_text(variable).map_error([](const std::string& error) {
    return fmt::format("the environment variable {}: {}", kTokenVariable, error);
  });
}

std::string new_token_text() {
  start_sodium();
  std::array<std::byte, 32> random;
  ::randombytes_buf(random.data(), random.size());
  std::string text(2 * random.size() + 1, '\0');
  ::sodium_bin2hex(text.data(), text.size(), bytes_at(random), random.size());
  text.pop_back();
  return text;
}

/// Both ends begin with one header, which need not be random, since the key is used once: what
/// *_init_pull() makes of key and header is also the state in which the other end pushes.
Seal::Seal(const SecretKey::Material& key) : state_(new State) {
  constexpr unsigned char kHeader[crypto_secretstream_xchacha20poly1305_HEADERBYTES] = {};
  static_assert(sizeof key == crypto_secretstream_xchacha20poly1305_KEYBYTES);
  ::crypto_secretstream_xchacha20poly1305_init_pull(state_.get(), kHeader, bytes_at(key));
}

Bytes Seal::seal(std::span<const std::byte> payload) {
  Bytes sealed(payload.size() + kMoreBytes);
  ::crypto_secretstream_xchacha20poly1305_push(state_.get(), memory_of(sealed), nullptr,
                                               bytes_at(payload), payload.size(), nullptr, 0, 0);
  return sealed;
}

std::optional<Bytes> Seal::open(std::span<const std::byte> sealed) {
  Bytes payload(sealed.size() < kMoreBytes ? 0 : sealed.size() - kMoreBytes);
  const int error = ::crypto_secretstream_xchacha20poly1305_pull(state_.get(), memory_of(payload),
                                                                 nullptr, nullptr, bytes_at(sealed),
                                                                 sealed.size(), nullptr, 0);
  return error == 0 ? std::optional(payload) : std::nullopt;
}

Greeting fresh_greeting() {
  start_sodium();
  Greeting greeting;
  ::randombytes_buf(greeting.data(), greeting.size());
  const auto version = std::ranges::copy(bytes_of(kMagic), greeting.begin()).out;
  for (int i = 0; i < 4; ++i) version[i] = static_cast<std::byte>(kProtocolVersion >> (8 * i));
  return greeting;
}

tl::expected<Greeting, std::string> greeting_from(std::span<const std::byte> bytes) {
  Greeting greeting;
  if (bytes.size() != greeting.size() ||
      !std::ranges::equal(bytes.first(kMagic.size()), bytes_of(kMagic))) {
    return tl::unexpected<std::string>(
        "it is no horarun: it begins with other bytes than a horarun's");
  }
  std::ranges::copy(bytes, greeting.begin());
  std::uint32_t version = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    version |= std::to_integer<std::uint32_t>(bytes[kMagic.size() + i]) << (8 * i);
  }
  if (version == kProtocolVersion) return greeting;
  return tl::unexpected(
      fmt::format("its horarun uses version {} of the rendezvous, this one version {}; install the "
                  "same version "
                  "of hora on all hosts",
                  version, kProtocolVersion));
}

SealPair seals_of(const SecretKey& token, bool connects, const Greeting& own,
                  const Greeting& other) {
  const auto seal = [&](std::string_view direction) {
    const std::array<std::span<const std::byte>, 3> parts{
        bytes_of(direction), connects ? own : other, connects ? other : own};
    return Seal(token.derive(parts));
  };
  Seal to_server = seal("hora seal: to server"), to_client = seal("hora seal: to client");
  if (connects) return {std::move(to_server), std::move(to_client)};
  return {std::move(to_client), std::move(to_server)};
}

}  // namespace hora::launch
