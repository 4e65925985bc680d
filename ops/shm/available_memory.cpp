#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "core/checked.h"
#include "ops/shm/window.h"

namespace hora {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : kUnlimited;  // "max", or no such file
}

std::uint64_t left_of(const std::string& limit_path, const std::string& usage_path) {
  const std::uint64_t limit = read_number(limit_path);
  const std::uint64_t usage = read_number(usage_path);
  if (limit == kUnlimited || usage == kUnlimited) return kUnlimited;
  return limit > usage ? limit - usage : 0;
}

std::uint64_t limit_of(const std::string& limit_path, const std::string&) {
  return read_number(limit_path);
}

/// Bytes; of what /proc/meminfo does not name: kUnlimited.
std::uint64_t meminfo(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  for (std::string rest; file >> key >> kibibytes; std::getline(file, rest)) {
    if (key == wanted) return kibibytes << 10;
  }
  return kUnlimited;
}

/// Of this process's control group and its parents, version 2 and version 1: the least that
/// `of(path of the limit, path of what is used)` gives.
template <class F>
std::uint64_t least_in_control_groups(F&& of) {
  std::uint64_t least = kUnlimited;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool unified = controllers.empty();
    if (!unified && controllers != "memory") continue;
    for (;; path.resize(path.find_last_of('/'))) {
      if (path == "/") path.clear();
      least =
          std::min(least, unified ? of("/sys/fs/cgroup" + path + "/memory.max",
                                       "/sys/fs/cgroup" + path + "/memory.current")
                                  : of("/sys/fs/cgroup/memory" + path + "/memory.limit_in_bytes",
                                       "/sys/fs/cgroup/memory" + path + "/memory.usage_in_bytes"));
      if (path.empty()) break;
    }
  }
  return least;
}

}  // namespace

std::uint64_t available_memory() {
  return std::min(meminfo("MemAvailable:"), least_in_control_groups(left_of));
}

std::uint64_t memory_of_host() {
  const std::uint64_t memory = std::min(meminfo("MemTotal:"), kMaxBytes);
  const std::uint64_t swap = std::min(meminfo("SwapTotal:"), kMaxBytes);
  return std::min({memory + swap, least_in_control_groups(limit_of), kMaxBytes});
}

}  // namespace hora
