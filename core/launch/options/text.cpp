#include "core/launch/options/text.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>

namespace hora::launch {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\v\f";

}  // namespace

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string_view> split_at_spaces(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t begin = text.find_first_not_of(kSpaces); begin != text.npos;) {
    const std::size_t end = text.find_first_of(kSpaces, begin);
    words.push_back(text.substr(begin, end == text.npos ? end : end - begin));
    begin = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

std::string without_spaces_around(std::string_view text, char middle) {
  std::string result;
  for (const std::string_view part : split(text, middle)) {
    if (!result.empty() || part.data() != text.data()) result += middle;
    result += trimmed(part);
  }
  return result;
}

tl::expected<int, std::string> parse_integer(std::string_view text, int least, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    return tl::unexpected("expected a whole number from " + std::to_string(least) + " to " +
                          std::to_string(most));
  }
  return number;
}

tl::expected<std::vector<std::string>, std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && kSpaces.find(c) != kSpaces.npos) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    const bool last = i + 1 == text.size();
    const bool escapes =
        c == '\\' && !last &&
        (quote == 0 || (quote == '"' && (text[i + 1] == '"' || text[i + 1] == '\\')));
    if (escapes) {
      words.back() += text[++i];
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) return tl::unexpected(std::string("the quote ") + quote + " is not closed");
  return words;
}

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
