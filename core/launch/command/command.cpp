#include "core/launch/command/command.h"

#include <hora/printable.h>

#include <algorithm>

namespace hora::launch {

std::string as_shell_word(std::string_view word) {
  const auto is_safe = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::ranges::all_of(word, is_safe)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string as_shell_line(const Command& command) {
  std::string line;
  for (const Variable& variable : command.environment) {
    line += variable.name + "=" + as_shell_word(variable.value) + " ";
  }
  bool first = true;
  for (const std::string& argument : command.arguments) {
    if (!first) line += ' ';
    // A first word with '=' would be read as an assignment.
    const bool quote = first && argument.find('=') != std::string::npos;
    const std::string word = as_shell_word(argument);
    line += quote && word == argument ? "'" + word + "'" : word;
    first = false;
  }
  return line;
}

namespace {

constexpr std::string_view kDigits = "0123456789ABCDEF";

bool is_plain(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         std::string_view("._/=+-").find(c) != std::string_view::npos;
}

}  // namespace

std::string encode_words(const std::vector<std::string>& words) {
  std::string text;
  bool first = true;
  for (const std::string& word : words) {
    if (!first) text += ',';
    first = false;
    for (const char c : word) {
      if (is_plain(c) && !(text.empty() && c == '-')) {
        text += c;
        continue;
      }
      const auto byte = static_cast<unsigned char>(c);
      text += {'%', kDigits[byte >> 4U], kDigits[byte & 0xFU]};
    }
  }
  return text;
}

tl::expected<std::vector<std::string>, std::string> decode_words(std::string_view text) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ',') {
      words.emplace_back();
      continue;
    }
    if (is_plain(c)) {
      words.back() += c;
      continue;
    }
    const bool complete = c == '%' && i + 2 < text.size();
    const std::size_t high = complete ? kDigits.find(text[i + 1]) : std::string_view::npos;
    const std::size_t low = complete ? kDigits.find(text[i + 2]) : std::string_view::npos;
    if (high == std::string_view::npos || low == std::string_view::npos) {
      return tl::unexpected("the words " + in_quotes(text) + " are not encoded: byte " +
                            std::to_string(i) + " is neither plain nor of the form %XX");
    }
    words.back() += static_cast<char>(high << 4U | low);
    i += 2;
  }
  return words;
}

}  // namespace hora::launch
