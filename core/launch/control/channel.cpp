#include "core/launch/control/channel.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "core/launch/control/messages.h"

namespace hora::launch {
namespace {

void set_nonblocking(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

}  // namespace

Channel::Channel(EventLoop& loop, UniqueFd in, UniqueFd out, OnMessage on_message, OnEnd on_end,
                 std::optional<SealPair> seals)
    : loop_(loop),
      in_(std::move(in)),
      out_(std::move(out)),
      on_message_(std::move(on_message)),
      on_end_(std::move(on_end)) {
  if (seals) {
    outgoing_seal_.emplace(std::move(seals->send));
    incoming_ = FrameReader(std::move(seals->receive));
  }
  set_nonblocking(in_.get());
  set_nonblocking(out_.get());
  loop_.watch(in_.get(), POLLIN, [this](short) { read(); });
}

Channel::~Channel() {
  if (open_) {
    loop_.forget(in_.get());
    loop_.forget(out_.get());
  }
}

void Channel::send(const Message& message) {
  if (!open_) return;
  const std::vector<std::byte> bytes = frame(message, outgoing_seal_ ? &*outgoing_seal_ : nullptr);
  outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end());
  write();
}

void Channel::flush(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (open_ && queued() > 0 && Clock::now() < end) {
    pollfd entry{out_.get(), POLLOUT, 0};
    ::poll(&entry, 1, 50);
    write();
  }
}

void Channel::pause(bool paused) {
  if (open_) loop_.change(in_.get(), paused ? 0 : POLLIN);
}

void Channel::read() {
  std::array<std::byte, 65536> bytes;
  const ssize_t count = ::read(in_.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count < 0) return end(std::strerror(errno));
  if (count == 0) return end("it has closed the connection");
  incoming_.append(std::span(bytes).first(static_cast<std::size_t>(count)));
  while (open_) {
    auto message = incoming_.next();
    if (!message) return end("it has sent something else than messages: " + message.error());
    if (!*message) return;
    on_message_(std::move(**message));
  }
}

void Channel::write() {
  while (open_ && queued() > 0) {
    const ssize_t count = ::write(out_.get(), outgoing_.data() + sent_, queued());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      loop_.watch(out_.get(), in_.get() == out_.get() ? POLLIN | POLLOUT : POLLOUT,
                  [this](short events) {
                    if ((events & (POLLOUT | POLLERR | POLLHUP)) != 0) write();
                    if (open_ && in_.get() == out_.get() && (events & POLLIN) != 0) read();
                  });
      return;
    }
    if (count < 0) return end(std::strerror(errno));
    sent_ += static_cast<std::size_t>(count);
  }
  outgoing_.clear();
  sent_ = 0;
  if (!open_) return;
  if (in_.get() == out_.get()) {
    loop_.watch(in_.get(), POLLIN, [this](short) { read(); });
  } else {
    loop_.forget(out_.get());
  }
}

void Channel::end(const std::string& reason) {
  if (!open_) return;
  open_ = false;
  loop_.forget(in_.get());
  loop_.forget(out_.get());
  on_end_(reason);
}

namespace {

template <class Number>
bool take(std::string_view& text, Number& number, bool last) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < Number{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (last) return text.empty();
  if (!text.starts_with(':')) return false;
  text.remove_prefix(1);
  return true;
}

unsigned long inode_of(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode)) return 0;
  return status.st_ino;
}

}  // namespace

std::string to_string(const PipeAddress& address) {
  return std::to_string(address.process) + ":" + std::to_string(address.descriptor) + ":" +
         std::to_string(address.inode);
}

std::optional<PipeAddress> parse_pipe_address(std::string_view text) {
  PipeAddress address;
  if (!take(text, address.process, false) || !take(text, address.descriptor, false) ||
      !take(text, address.inode, true)) {
    return std::nullopt;
  }
  return address;
}

PipeAddress address_of(const UniqueFd& write_end) {
  return {::getpid(), write_end.get(), inode_of(write_end.get())};
}

tl::expected<UniqueFd, std::string> open_report_pipe(const PipeAddress& address) {
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  UniqueFd pipe(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!pipe) {
    return tl::unexpected("the agent, process " + std::to_string(address.process) +
                          " of this host, cannot be reached: " + std::strerror(errno));
  }
  if (inode_of(pipe.get()) != address.inode) {
    return tl::unexpected("process " + std::to_string(address.process) +
                          " of this host is not the agent: the variable " + kAgentVariable +
                          " comes from another host or an earlier job");
  }
  return pipe;
}

bool send_report(const UniqueFd& pipe, const Message& message) {
  const std::vector<std::byte> bytes = frame(message);
  if (bytes.size() > PIPE_BUF) throw std::length_error("a report is longer than PIPE_BUF");
  ssize_t count = 0;
  do {
    count = ::write(pipe.get(), bytes.data(), bytes.size());
  } while (count < 0 && errno == EINTR);
  return count == static_cast<ssize_t>(bytes.size());
}

}  // namespace hora::launch
