#include "core/launch/command/command.h"

#include <elf.h>
#include <fcntl.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "core/launch/control/system.h"

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

/// A file's first bytes, as many as there are.
std::optional<std::string> beginning_of(const std::string& path, std::size_t most) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string bytes(most, '\0');
  const ssize_t count = file ? ::read(file.get(), bytes.data(), most) : -1;
  if (count < 0) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(count));
  return bytes;
}

/// Says why this is no file that the kernel executes here; empty where it is one, or cannot be
/// read.
std::string wrong_with_content(const std::string& path) {
  constexpr std::size_t kBytes = offsetof(Elf64_Ehdr, e_version);
  const auto bytes = beginning_of(path, kBytes);
  if (!bytes || bytes->starts_with("#!")) return {};
  if (bytes->empty()) return "it is empty";
  Elf64_Ehdr header{};
  Elf64_Ehdr own{};
  std::memcpy(&header, bytes->data(), bytes->size());
  const std::string self = beginning_of("/proc/self/exe", kBytes).value_or("");
  std::memcpy(&own, self.data(), self.size());
  if (bytes->size() < kBytes || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return "it is no ELF file; a script begins with #! and its interpreter";
  }
  if (header.e_type != ET_EXEC && header.e_type != ET_DYN) {
    return "it is an ELF file, but no program (an object file or a memory dump)";
  }
  const bool is_same = header.e_ident[EI_CLASS] == own.e_ident[EI_CLASS] &&
                       header.e_ident[EI_DATA] == own.e_ident[EI_DATA] &&
                       header.e_machine == own.e_machine;
  if (self.size() < kBytes || is_same) return {};
  return fmt::format("it is for another processor (machine {} of ELF's list; this host is {})",
                     header.e_machine, own.e_machine);
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
  if (const std::string why = wrong_with_content(path); !why.empty()) return failure(why);
  return path;
}

}  // namespace hora::launch
