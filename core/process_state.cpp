#include "core/process_state.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

namespace hora::internal {

ProcessState state_in(std::string_view stat) {
  // The name, in parentheses, may hold any character, parentheses among them.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= stat.size()) {
    return ProcessState::unknown;
  }
  switch (stat[name_end + 2]) {
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

ProcessState process_state(std::int64_t pid) {
  if (pid <= 0) return ProcessState::unknown;
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const bool exists = ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
    return exists ? ProcessState::unknown : ProcessState::gone;
  }
  std::array<char, 512> text{};
  const ssize_t bytes = ::read(file, text.data(), text.size());
  ::close(file);
  // ESRCH: it has ended in between.
  if (bytes < 0) return errno == ESRCH ? ProcessState::gone : ProcessState::unknown;
  return state_in({text.data(), static_cast<std::size_t>(bytes)});
}

}  // namespace hora::internal
