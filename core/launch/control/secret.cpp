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

#include "core/launch/control/system.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr std::string_view kProtocol = "horarun4";

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

/// Keyed BLAKE2b of these parts.
SecretKey hash(std::span<const unsigned char> key,
               std::initializer_list<std::span<const std::byte>> parts) {
  start_sodium();
  SecretKey result(new KeyBytes);
  const Secret<crypto_generichash_state> state(new crypto_generichash_state);
  ::crypto_generichash_init(state.get(), key.data(), key.size(), result->size());
  for (const auto part : parts) {
    ::crypto_generichash_update(state.get(), bytes_at(part), part.size());
  }
  ::crypto_generichash_final(state.get(), result->data(), result->size());
  return result;
}

}  // namespace

tl::expected<SecretKey, std::string> token_from_text(std::string_view text) {
  const std::string_view token = trimmed(text);
  if (token.size() < kShortestToken || token.size() > kLongestToken) {
    return tl::unexpected(
        fmt::format("a token has {} to {} bytes, this one {}; make one by: openssl rand -hex 32",
                    kShortestToken, kLongestToken, token.size()));
  }
  constexpr std::array<unsigned char, 25> kPurpose{"hora launcher's token, 2"};
  return hash(kPurpose, {bytes_of(token)});
}

tl::expected<SecretKey, std::string> token_from_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return tl::unexpected(
        fmt::format("the token file {} cannot be used: {}", in_quotes(path), why));
  };
  if (path.find('\0') != std::string::npos) return refuse("its name holds a zero byte");
  // O_NONBLOCK: opening a FIFO does not wait for a writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return refuse("it is no regular file");
  if (status.st_uid != ::geteuid()) {
    return refuse(
        fmt::format("it belongs to user {}, not to this one, {}", status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return refuse("others may read or change it; allow it to its user alone: chmod 600");
  }
  const Secret<std::array<char, kLongestToken + 1>> text(new std::array<char, kLongestToken + 1>);
  const ssize_t count = ::read(file.get(), text->data(), text->size());
  if (count < 0) return refuse(std::strerror(errno));
  auto token = token_from_text({text->data(), static_cast<std::size_t>(count)});
  if (!token) return refuse(token.error());
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
  KeyBytes random;
  ::randombytes_buf(random.data(), random.size());
  std::string text(2 * random.size() + 1, '\0');
  ::sodium_bin2hex(text.data(), text.size(), random.data(), random.size());
  text.pop_back();
  return text;
}

/// Both ends begin with one header, which need not be random, since the key is used once: what
/// *_init_pull() makes of key and header is also the state in which the other end pushes.
Seal::Seal(const KeyBytes& key) : state_(new crypto_secretstream_xchacha20poly1305_state) {
  constexpr unsigned char kHeader[crypto_secretstream_xchacha20poly1305_HEADERBYTES] = {};
  ::crypto_secretstream_xchacha20poly1305_init_pull(state_.get(), kHeader, key.data());
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
  std::ranges::copy(bytes_of(kProtocol), greeting.begin());
  return greeting;
}

bool is_greeting(std::span<const std::byte> bytes) {
  return bytes.size() == sizeof(Greeting) &&
         std::ranges::equal(bytes.first(kProtocol.size()), bytes_of(kProtocol));
}

SealPair seals_of(const SecretKey& token, bool connects, const Greeting& own,
                  const Greeting& other) {
  const auto seal = [&](std::string_view direction) {
    return Seal(
        *hash(*token, {bytes_of(direction), connects ? own : other, connects ? other : own}));
  };
  Seal to_server = seal("to server"), to_client = seal("to client");
  if (connects) return {std::move(to_server), std::move(to_client)};
  return {std::move(to_client), std::move(to_server)};
}

}  // namespace hora::launch
