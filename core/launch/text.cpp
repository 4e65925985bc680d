#include "core/launch/text.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "core/base/text.h"
#include "core/launch/control/system.h"

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

bool lists(std::string_view words, std::string_view word) {
  const auto all = split_at_spaces(words);
  return std::ranges::find(all, word) != all.end();
}

std::string first_of(std::vector<std::string> names, std::size_t most) {
  const std::size_t count = names.size();
  names.resize(std::min(count, most));
  return fmt::format("{}{}", fmt::join(names, ", "),
                     count > most ? fmt::format(" and {} more", count - most) : "");
}

std::string aligned(const std::vector<std::vector<std::string>>& rows, std::string_view alignment) {
  const auto width_of = [](std::string_view text) {
    return text.size() -
           static_cast<std::size_t>(std::ranges::count_if(text, internal::continues_character));
  };
  std::vector<std::size_t> widths(alignment.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      line += (i > 0 ? "  " : "") + (alignment[i] == '<' ? row[i] + padding : padding + row[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

bool is_made_of(std::string_view text, std::string_view more) noexcept {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           more.find(c) != more.npos;
  });
}

bool is_variable_name(std::string_view name) noexcept {
  return is_made_of(name, "_") && (name.front() < '0' || name.front() > '9');
}

bool is_host_name(std::string_view name) noexcept {
  constexpr std::size_t kLongest = 253;  // RFC 1035, 2.3.4, without the last dot
  return is_made_of(name, "._-") && name.size() <= kLongest && name.front() != '-';
}

tl::expected<int, std::string> parse_integer(std::string_view text, int least, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    return tl::unexpected(fmt::format("expected a whole number from {} to {}", least, most));
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
  if (quote != 0) return tl::unexpected(fmt::format("the quote {} is not closed", quote));
  return words;
}

tl::expected<std::string, std::string> read_input_file(const std::string& path,
                                                       std::size_t largest) {
  constexpr int kLongestPause = 10000;  // milliseconds
  const auto failure = [](const char* what) {
    return tl::unexpected(what + (": " + std::system_category().message(errno)));
  };
  // O_NONBLOCK: a FIFO without a writer is empty instead of waiting for one.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return failure("cannot be opened");
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t bytes = ::read(file.get(), buffer.data(), buffer.size());
    if (bytes == 0) return text;
    if (bytes > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(bytes));
      if (text.size() > largest) {
        return tl::unexpected(fmt::format("is larger than {} bytes", largest));
      }
    } else if (errno == EAGAIN) {
      pollfd event{file.get(), POLLIN, 0};
      if (::poll(&event, 1, kLongestPause) == 0) {
        return tl::unexpected(std::string("gives nothing for 10 s"));
      }
    } else if (errno != EINTR) {
      return failure("cannot be read");
    }
  }
}

}  // namespace hora::launch
