#include "core/launch/control/channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "core/launch/text.h"

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

/// Messages read before other descriptors have their turn.
constexpr int kMostMessagesAtOnce = 64;

constexpr char kNoHorarun[] =
    "it begins with other bytes than this version's horarun does; is it one, and hora of the same "
    "version on all hosts?";
constexpr char kOtherToken[] =
    "it has another token than this node (HORARUN_TOKEN or --token-file), where all need the same";
constexpr char kWrongSeal[] =
    "it has sent a message without the right seal: it was changed on its way, or is not its";

void set_nonblocking(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

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

tl::expected<SecretKey, std::string> load_token(const std::string& file, const char* variable) {
  if (!file.empty()) return token_from_file(file);
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
      if (length == 0 || length > kMostMessageBytes + Seal::kMoreBytes) {
        return tl::unexpected(
            fmt::format("it has sent something else than messages: one of {} bytes; the most is {}",
                        length, kMostMessageBytes));
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

Connection connection_of(UniqueFd socket) {
  UniqueFd out(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
  if (!out) throw std::system_error(errno, std::generic_category(), "dup");
  return {std::move(socket), std::move(out)};
}

Channel::Channel(EventLoop& loop, Connection connection, OnMessage on_message, OnEnd on_end)
    : loop_(loop),
      connection_(std::move(connection)),
      on_message_(std::move(on_message)),
      on_end_(std::move(on_end)) {
  set_nonblocking(connection_.in.get());
  set_nonblocking(connection_.out.get());
  loop_.watch(connection_.in.get(), POLLIN, [this](short) { read(); });
}

Channel::Channel(EventLoop& loop, Connection connection, const SecretKey& token, bool connects,
                 OnMessage on_message, OnEnd on_end)
    : Channel(loop, std::move(connection), std::move(on_message), std::move(on_end)) {
  handshake_ = {.token = &token, .connects = connects};
  outgoing_ = frame_of(handshake_->own);
  write();
}

Channel::~Channel() {
  if (open_) release();
}

Connection Channel::release() {
  open_ = false;
  loop_.forget(connection_.in.get());
  loop_.forget(connection_.out.get());
  return std::move(connection_);
}

void Channel::send(const Message& message) {
  if (!open_) return;
  const Bytes bytes =
      frame_of(encode(message), connection_.seals ? &connection_.seals->send : nullptr);
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
  write();
}

bool Channel::flush(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (open_ && queued() > 0 && Clock::now() < end) {
    pollfd entry{connection_.out.get(), POLLOUT, 0};
    ::poll(&entry, 1, 50);
    write();
  }
  return queued() == 0;
}

void Channel::read() {
  for (int i = 0; open_ && i < kMostMessagesAtOnce; ++i) {
    const auto payload = incoming_.read(connection_.in.get());
    if (!payload) return end(payload.error());
    if (!*payload) return;
    take(**payload);
  }
}

void Channel::take(std::span<const std::byte> payload) {
  if (handshake_ && !connection_.seals) return greet(payload);
  std::optional<Bytes> opened;
  if (connection_.seals) {
    opened = connection_.seals->receive.open(payload);
    if (!opened) return refuse(handshake_ ? kOtherToken : kWrongSeal);
    payload = *opened;
    handshake_.reset();
  }
  auto message = decode(payload);
  if (!message) return refuse("it has sent something else than messages: " + message.error());
  on_message_(std::move(*message));
}

void Channel::greet(std::span<const std::byte> greeting) {
  if (!is_greeting(greeting)) return refuse(kNoHorarun);
  Greeting other;
  std::ranges::copy(greeting, other.begin());
  connection_.seals = seals_of(*handshake_->token, handshake_->connects, handshake_->own, other);
  send(Heartbeat{});
}

void Channel::write() {
  while (open_ && queued() > 0) {
    const ssize_t count = ::write(connection_.out.get(), outgoing_.data() + sent_, queued());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      return loop_.watch(connection_.out.get(), POLLOUT, [this](short) { write(); });
    }
    if (count < 0) return end(std::strerror(errno));
    sent_ += static_cast<std::size_t>(count);
  }
  outgoing_.clear();
  sent_ = 0;
  if (open_) loop_.forget(connection_.out.get());
}

void Channel::refuse(const std::string& reason) {
  refused_ = true;
  end(reason);
}

void Channel::end(const std::string& reason) {
  if (!open_) return;
  open_ = false;
  loop_.forget(connection_.in.get());
  loop_.forget(connection_.out.get());
  on_end_(reason);
}

std::string address_of(const UniqueFd& write_end) {
  return fmt::format("{}:{}", ::getpid(), write_end.get());
}

tl::expected<ReportPipe, std::string> open_report_pipe() {
  const char* text = std::getenv(kAgentVariable);
  pid_t agent = 0;
  int descriptor = -1, length = 0;
  const int read =
      std::sscanf(text == nullptr ? "" : text, "%d:%d%n", &agent, &descriptor, &length);
  if (read != 2 || text[length] != '\0' || descriptor < 0) {
    return tl::unexpected(
        fmt::format("it is started below horarun alone, which sets {}", kAgentVariable));
  }
  ReportPipe result{UniqueFd(::open(fmt::format("/proc/{}/fd/{}", agent, descriptor).c_str(),
                                    O_WRONLY | O_CLOEXEC)),
                    agent};
  struct stat status {};
  if (!result.pipe || ::fstat(result.pipe.get(), &status) != 0 || !S_ISFIFO(status.st_mode)) {
    return tl::unexpected(
        fmt::format("the agent, process {} of this host, cannot be reached", agent));
  }
  return result;
}

bool send_report(const UniqueFd& pipe, const Message& message) {
  const Bytes bytes = frame_of(encode(message));
  if (bytes.size() > PIPE_BUF) throw std::length_error("a report is longer than PIPE_BUF");
  ssize_t count = 0;
  do {
    count = ::write(pipe.get(), bytes.data(), bytes.size());
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(bytes.size());
}

}  // namespace hora::launch
