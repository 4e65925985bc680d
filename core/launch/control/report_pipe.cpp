#include "core/launch/control/report_pipe.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "core/launch/control/frames.h"

namespace hora::launch {
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
