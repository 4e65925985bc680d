/// A program to start, as values: a dry run prints it, the agent executes it; which names may stand
/// in it, how it is written as text, and which file it is. Pure, but for the latter.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

/// Names of environment variables: [A-Z_a-z][A-Za-z0-9_]*, as POSIX has it (XBD 8.1) and shells
/// accept it.
inline bool is_variable_name(std::string_view name) noexcept {
  const auto is_letter = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  };
  return !name.empty() && is_letter(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

/// True where it may stand on a command line as a host: a name or an address of [A-Za-z0-9._:-]
/// that is no option.
inline bool is_host_name(std::string_view name) noexcept {
  constexpr std::size_t kLongest = 253;  // RFC 1035, 2.3.4, without the last dot
  const auto is_allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  };
  return !name.empty() && name.size() <= kLongest && name.front() != '-' &&
         std::ranges::all_of(name, is_allowed);
}

struct Variable {
  std::string name;
  std::string value;

  bool operator==(const Variable&) const = default;
};

struct Command {
  /// arguments[0] is the program's path. Executed as it is: nothing goes through a shell.
  std::vector<std::string> arguments;
  /// Set on top of the environment that the process inherits.
  std::vector<Variable> environment;

  bool operator==(const Command&) const = default;
};

/// One word as a POSIX shell reads it back: as it is where that is safe, else in single quotes.
/// No value holds a zero byte.
std::string as_shell_word(std::string_view word);

/// `NAME=value... program argument...` in one line, which a POSIX shell reads back as the same
/// command. A line feed within a word stays one, within quotes.
std::string as_shell_line(const Command& command);

/// The command by which a POSIX shell becomes the program at the end of `text`, which mpirun writes
/// for the shell of another host: assignments and exports, then one command (its daemon).
std::vector<std::string> shell_command(std::string text);

/// `./train --epochs 3` as one word, `./train,--epochs,3`, in which mpirun finds no options of its
/// own. Bytes other than [A-Za-z0-9._/=+-] are written as %XX (RFC 3986, 2.1), a dash at the
/// beginning, too. At least one word.
std::string encode_words(const std::vector<std::string>& words);

/// The error says at which byte the text is none of encode_words().
tl::expected<std::vector<std::string>, std::string> decode_words(std::string_view text);

/// The executable file `name` on `search_path`, absolute; `name` itself where it holds a slash.
/// Empty: none.
std::string find_program(const std::string& name, std::string_view search_path);

/// A path that is not absolute, from `folder`; a name without a slash, which PATH is searched for,
/// as it is. Pure.
std::string program_from(const std::string& folder, const std::string& program);

/// The path of `program`, a path or a name on `search_path`, as execvp finds it. Nothing of it is
/// executed. The error says what is wrong: not there, a folder, not executable by this user.
tl::expected<std::string, std::string> inspect_program(const std::string& program,
                                                       std::string_view search_path);

}  // namespace hora::launch
