#include "core/launch/control/process_tree.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

namespace hora::launch {
namespace {

std::vector<ProcessStat> all_processes() {
  std::vector<ProcessStat> result;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::int64_t pid = 0;
    const auto [rest, no_number] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (no_number != std::errc{} || rest != name.data() + name.size()) continue;
    if (auto stat = internal::process_stat(pid)) result.push_back(std::move(*stat));
  }
  return result;
}

}  // namespace

std::vector<ProcessStat> descendants_of(pid_t ancestor, const std::vector<ProcessStat>& all) {
  std::multimap<std::int64_t, const ProcessStat*> children;
  for (const ProcessStat& process : all) children.emplace(process.parent, &process);
  std::vector<ProcessStat> result;
  std::vector<std::int64_t> parents{ancestor};
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto [first, last] = children.equal_range(parents[i]);
    for (auto child = first; child != last; ++child) {
      if (child->second->pid == ancestor) continue;
      parents.push_back(child->second->pid);
      if (child->second->state != internal::ProcessState::gone) result.push_back(*child->second);
    }
  }
  return result;
}

std::vector<ProcessStat> descendants_of(pid_t ancestor) {
  return descendants_of(ancestor, all_processes());
}

void kill_descendants(std::chrono::milliseconds limit) noexcept {
  try {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      const auto left = descendants_of(::getpid());
      if (left.empty()) break;
      for (const ProcessStat& process : left) ::kill(static_cast<pid_t>(process.pid), SIGKILL);
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      ::usleep(5000);
    }
  } catch (...) {  // no memory: the kernel ends what is left with the session
  }
}

}  // namespace hora::launch
