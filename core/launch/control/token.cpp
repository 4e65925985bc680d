#include "core/launch/control/token.h"

#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/launch/control/unique_fd.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

static_assert(crypto_auth_KEYBYTES == 32 && crypto_auth_BYTES == 32);

const unsigned char* bytes_at(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

void start_sodium() {
  static const bool started = ::sodium_init() >= 0;
  if (!started) {
    throw Error(ErrorCode::transport,
                "libsodium cannot start: this host gives no random numbers (/dev/urandom)");
  }
}

tl::unexpected<std::string> refuse(const std::string& path, const std::string& why) {
  return tl::unexpected("the token file " + in_quotes(path) + " cannot be used: " + why);
}

tl::expected<void, std::string> check_private(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    return refuse(path, std::generic_category().message(errno));
  }
  if (!S_ISREG(status.st_mode)) return refuse(path, "it is no regular file");
  if (status.st_uid != ::geteuid()) {
    return refuse(path, "it belongs to user " + std::to_string(status.st_uid) +
                            ", not to this one, " + std::to_string(::geteuid()));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return refuse(path, "others may read or change it; allow it to its user alone: chmod 600");
  }
  return {};
}

/// Text that is zeroed at its end.
class SecretText {
 public:
  SecretText() = default;
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
  ~SecretText() { ::sodium_memzero(bytes_.data(), bytes_.size()); }

  /// Reads up to one byte more than the longest token; -1 on an error, with errno.
  ssize_t read_from(int descriptor) {
    while (length_ < bytes_.size()) {
      const ssize_t count = ::read(descriptor, bytes_.data() + length_, bytes_.size() - length_);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return -1;
      if (count == 0) break;
      length_ += static_cast<std::size_t>(count);
    }
    return static_cast<ssize_t>(length_);
  }
  std::string_view text() const { return {bytes_.data(), length_}; }

 private:
  std::array<char, kLongestToken + 1> bytes_{};
  std::size_t length_ = 0;
};

}  // namespace

SecretKey::SecretKey(SecretKey&& other) noexcept : bytes_(other.bytes_) {
  ::sodium_memzero(other.bytes_.data(), other.bytes_.size());
}

SecretKey& SecretKey::operator=(SecretKey&& other) noexcept {
  if (this != &other) {
    bytes_ = other.bytes_;
    ::sodium_memzero(other.bytes_.data(), other.bytes_.size());
  }
  return *this;
}

SecretKey::~SecretKey() {
  ::sodium_memzero(bytes_.data(), bytes_.size());
}

SecretKey::Bytes SecretKey::authenticate(std::span<const std::span<const std::byte>> parts) const {
  start_sodium();
  crypto_auth_hmacsha512256_state state;
  ::crypto_auth_hmacsha512256_init(&state, bytes_at(bytes_), bytes_.size());
  for (const std::span<const std::byte> part : parts) {
    ::crypto_auth_hmacsha512256_update(&state, bytes_at(part), part.size());
  }
  Bytes tag;
  ::crypto_auth_hmacsha512256_final(&state, reinterpret_cast<unsigned char*>(tag.data()));
  ::sodium_memzero(&state, sizeof state);
  return tag;
}

bool SecretKey::verify(std::span<const std::span<const std::byte>> parts, const Bytes& tag) const {
  const Bytes expected = authenticate(parts);
  return ::sodium_memcmp(expected.data(), tag.data(), tag.size()) == 0;
}

Nonce fresh_nonce() {
  start_sodium();
  Nonce nonce;
  ::randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

tl::expected<SecretKey, std::string> token_from_text(std::string_view text) {
  start_sodium();
  const std::string_view token = trimmed(text);
  if (token.size() < kShortestToken || token.size() > kLongestToken) {
    return tl::unexpected("a token has " + std::to_string(kShortestToken) + " to " +
                          std::to_string(kLongestToken) + " bytes, this one " +
                          std::to_string(token.size()) + "; make one by: openssl rand -hex 32");
  }
  SecretKey::Bytes key;
  constexpr std::string_view kPurpose = "hora launcher's token, version 1";
  ::crypto_generichash(reinterpret_cast<unsigned char*>(key.data()), key.size(),
                       reinterpret_cast<const unsigned char*>(token.data()), token.size(),
                       reinterpret_cast<const unsigned char*>(kPurpose.data()), kPurpose.size());
  SecretKey secret(key);
  ::sodium_memzero(key.data(), key.size());
  return secret;
}

tl::expected<SecretKey, std::string> token_from_file(const std::string& path) {
  if (path.find('\0') != std::string::npos) return refuse(path, "its name holds a zero byte");
  // O_NONBLOCK: opening a FIFO does not wait for a writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) return refuse(path, std::generic_category().message(errno));
  if (const auto is_private = check_private(file.get(), path); !is_private) {
    return tl::unexpected(is_private.error());
  }
  SecretText text;
  if (text.read_from(file.get()) < 0) return refuse(path, std::generic_category().message(errno));
  auto token = token_from_text(text.text());
  if (!token) return refuse(path, token.error());
  return token;
}

tl::expected<SecretKey, std::string> load_token(const std::optional<std::string>& file,
                                                const char* variable) {
  if (file) return token_from_file(*file);
  const std::string name(kTokenVariable);
  if (variable == nullptr) {
    return tl::unexpected(
        "no token: the launchers of all nodes need the same secret, in a file of mode 0600 that an "
        "option names, or in the environment variable " +
        name + "; make one by: openssl rand -hex 32");
  }
  auto token = token_from_text(variable);
  if (!token) return tl::unexpected("the environment variable " + name + ": " + token.error());
  return token;
}

std::string new_token_text() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : fresh_nonce()) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace hora::launch
