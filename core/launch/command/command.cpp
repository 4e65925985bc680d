#include "core/launch/command/command.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/launch/control/system.h"
#include "core/launch/text.h"

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
    line += fmt::format("{}={} ", variable.name, as_shell_word(variable.value));
  }
  for (const std::string& argument : command.arguments) {
    const bool first = &argument == &command.arguments.front();
    const std::string word = as_shell_word(argument);
    // A first word with '=' would be read as an assignment.
    const bool quote = first && word == argument && argument.find('=') != std::string::npos;
    line += (first ? "" : " ") + (quote ? "'" + word + "'" : word);
  }
  return line;
}

std::vector<std::string> shell_command(std::string text) {
  std::size_t begin = 0;  // of the command, behind the settings
  for (std::size_t end; (end = text.find(';', begin)) != text.npos; begin = end + 1) {
    const std::string_view setting = trimmed(std::string_view(text).substr(begin, end - begin));
    if (!setting.starts_with("export ") && !is_variable_name(setting.substr(0, setting.find('='))))
      break;
  }
  return {"/bin/sh", "-c", text.insert(begin, "exec ")};
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
  for (const std::string& word : words) {
    if (&word != &words.front()) text += ',';
    for (const char c : word) {
      const bool plain = is_plain(c) && !(text.empty() && c == '-');
      text += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
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
      return tl::unexpected(
          fmt::format("the words {} are not encoded: byte {} is neither plain nor of the form %XX",
                      in_quotes(text), i));
    }
    words.back() += static_cast<char>(high << 4U | low);
    i += 2;
  }
  return words;
}

namespace {

bool is_executable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& name, std::string_view search_path) {
  std::error_code error;
  if (name.find('/') != std::string::npos) {
    const std::filesystem::path absolute = std::filesystem::absolute(name, error);
    return !error && is_executable(absolute) ? absolute.string() : std::string();
  }
  while (!name.empty() && !search_path.empty()) {
    const std::size_t end = std::min(search_path.find(':'), search_path.size());
    const std::filesystem::path folder(search_path.substr(0, end));
    search_path.remove_prefix(std::min(end + 1, search_path.size()));
    // A relative folder is another one on each host.
    if (folder.is_absolute() && is_executable(folder / name)) return folder / name;
  }
  return {};
}

std::string program_from(const std::string& folder, const std::string& program) {
  if (program.find('/') == std::string::npos || program.starts_with('/')) return program;
  return (std::filesystem::path(folder) / program).lexically_normal();
}

tl::expected<std::string, std::string> inspect_program(const std::string& program,
                                                       std::string_view search_path) {
  const auto failure = [&](const std::string& why) {
    return tl::unexpected(fmt::format("the program {} cannot be run: {}", in_quotes(program), why));
  };
  std::string path = program;
  if (program.find('/') == std::string::npos) {
    path = find_program(program, search_path);
    if (path.empty()) {
      return failure(
          fmt::format("it is in none of the folders of PATH ({}); for one in this folder write {}",
                      printable(search_path), in_quotes("./" + program)));
    }
  }
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error) return failure(error.message());
  if (std::filesystem::is_directory(status)) return failure("it is a folder");
  if (!std::filesystem::is_regular_file(status)) return failure("it is no regular file");
  if (::access(path.c_str(), X_OK) != 0) {
    return failure("it is not executable for this user (chmod +x)");
  }
  return path;
}

}  // namespace hora::launch
