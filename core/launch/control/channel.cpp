#include "core/launch/control/channel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>
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

unsigned long inode_of(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode)) return 0;
  return status.st_ino;
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
                 std::size_t longest, OnMessage on_message, OnEnd on_end)
    : Channel(loop, std::move(connection), std::move(on_message), std::move(on_end)) {
  handshake_ = {.token = &token, .connects = connects};
  incoming_ = FrameReader(longest);
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
  return fmt::format("{}:{}:{}", ::getpid(), write_end.get(), inode_of(write_end.get()));
}

tl::expected<ReportPipe, std::string> open_report_pipe() {
  const char* text = std::getenv(kAgentVariable);
  pid_t agent = 0;
  int descriptor = -1, length = 0;
  unsigned long inode = 0;
  const int read =
      std::sscanf(text == nullptr ? "" : text, "%d:%d:%lu%n", &agent, &descriptor, &inode, &length);
  if (read != 3 || text[length] != '\0' || descriptor < 0) {
    return tl::unexpected(
        fmt::format("it is started below horarun alone, which sets {}", kAgentVariable));
  }
  ReportPipe result{UniqueFd(::open(fmt::format("/proc/{}/fd/{}", agent, descriptor).c_str(),
                                    O_WRONLY | O_CLOEXEC)),
                    agent};
  if (!result.pipe) {
    return tl::unexpected(fmt::format("the agent, process {} of this host, cannot be reached: {}",
                                      agent, std::strerror(errno)));
  }
  if (inode_of(result.pipe.get()) != inode) {
    return tl::unexpected(fmt::format(
        "process {} of this host is not the agent: the variable {} comes from another host or an "
        "earlier job",
        agent, kAgentVariable));
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
