#include "core/launch/guard/last_words.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace hora::launch {
namespace {

bool is_of_signal_handler(std::string_view line) {
  const auto colon = line.find(':');
  const auto end = line.find("] ");
  if (!line.starts_with('[') || colon == line.npos || end == line.npos || colon >= end)
    return false;
  for (const char character : line.substr(colon + 1, end - colon - 1)) {
    if (std::isdigit(static_cast<unsigned char>(character)) == 0) return false;
  }
  return true;
}

std::string last_of(const std::vector<std::string_view>& lines, std::size_t count) {
  std::string text;
  for (std::size_t i = lines.size() - std::min(count, lines.size()); i < lines.size(); ++i) {
    text.append(text.empty() ? "" : "\n").append(lines[i]);
  }
  return text;
}

}  // namespace

void LastWords::append(std::string_view bytes) {
  text_.append(bytes);
  if (text_.size() > most_) text_.erase(0, text_.size() - most_);
}

std::string LastWords::lines(std::size_t count) const {
  std::vector<std::string_view> all, own;
  std::string_view rest = text_;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find_first_of("\r\n"));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find_first_not_of(" \t") == line.npos) continue;
    all.push_back(line);
    if (!is_of_signal_handler(line)) own.push_back(line);
  }
  return last_of(own.empty() ? all : own, count);
}

}  // namespace hora::launch
