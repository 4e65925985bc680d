#include "core/launch/options/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

constexpr int kLongestPause = 10000;  // milliseconds

std::string reason() {
  return std::system_category().message(errno);
}

/// Closes it at the end.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

tl::expected<std::string, std::string> read_input_file(const std::string& path,
                                                       std::size_t largest) {
  // O_NONBLOCK: a FIFO without a writer is empty instead of waiting for one.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.number() < 0) return Unexpected("cannot be opened: " + reason());
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t bytes = read(file.number(), buffer.data(), buffer.size());
    if (bytes == 0) return text;
    if (bytes > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(bytes));
      if (text.size() > largest) {
        return Unexpected("is larger than " + std::to_string(largest) + " bytes");
      }
    } else if (errno == EAGAIN) {
      pollfd event{file.number(), POLLIN, 0};
      if (poll(&event, 1, kLongestPause) == 0) return Unexpected("gives nothing for 10 s");
    } else if (errno != EINTR) {
      return Unexpected("cannot be read: " + reason());
    }
  }
}

}  // namespace hora::launch
