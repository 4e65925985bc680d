#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "core/base/process.h"

namespace hora::internal {
namespace {

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

ProcessState state_of(char letter) {
  switch (letter) {
    case 'R':
      return ProcessState::running;
    case 'S':
    case 'I':
      return ProcessState::sleeping;
    case 'D':
      return ProcessState::blocked;
    case 'T':
      return ProcessState::stopped;
    case 't':
      return ProcessState::traced;
    case 'Z':
    case 'X':
    case 'x':
      return ProcessState::gone;
    default:
      return ProcessState::unknown;
  }
}

}  // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view text) {
  // The name, in parentheses, may hold any character, parentheses among them.
  const auto open = text.find(" (");
  const auto close = text.rfind(") ");
  if (open == text.npos || close == text.npos || close < open + 2) return std::nullopt;
  const auto pid = number(text.substr(0, open));
  const std::string_view rest = text.substr(close + 2);
  if (!pid || rest.size() < 3 || rest[1] != ' ') return std::nullopt;
  const auto parent = number(rest.substr(2, rest.find(' ', 2) - 2));
  if (!parent) return std::nullopt;
  return ProcessStat{*pid, *parent, state_of(rest[0]),
                     std::string(text.substr(open + 2, close - open - 2))};
}

std::optional<ProcessStat> process_stat(std::int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::array<char, 512> text{};
  const ssize_t bytes = ::read(file, text.data(), text.size());
  ::close(file);
  if (bytes < 0) return std::nullopt;
  return parse_process_stat({text.data(), static_cast<std::size_t>(bytes)});
}

ProcessState process_state(std::int64_t pid) {
  if (pid <= 0) return ProcessState::unknown;
  if (const auto stat = process_stat(pid)) return stat->state;
  const bool exists = ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
  return exists ? ProcessState::unknown : ProcessState::gone;
}

}  // namespace hora::internal
