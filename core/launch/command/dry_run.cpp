#include "core/launch/command/dry_run.h"

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

}  // namespace hora::launch
