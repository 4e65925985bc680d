#include "core/launch/command/resource_limits.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

namespace hora::launch {
namespace {

/// Removed from the front of `text`, up to `end`, which is removed, too.
std::string_view take_until(std::string_view& text, char end) {
  const std::size_t length = std::min(text.find(end), text.size());
  const std::string_view taken = text.substr(0, length);
  text.remove_prefix(std::min(length + 1, text.size()));
  return taken;
}

bool lists(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    if (take_until(controllers, ',') == wanted) return true;
  }
  return false;
}

/// `path` below `mount`, and all folders above it.
void add_with_parents(std::vector<CgroupFolder>& folders, const std::string& mount,
                      std::string_view path, int version) {
  while (true) {
    while (path.ends_with('/')) path.remove_suffix(1);
    folders.push_back({mount + std::string(path), version});
    if (path.empty()) return;
    path = path.substr(0, std::min(path.rfind('/'), path.size()));
    if (path.find('/') == std::string_view::npos) path = {};
  }
}

double ratio(double quota, double period) {
  return period > 0 ? quota / period : 0;
}

/// Version 2: "200000 100000" or "max 100000".
double limit_v2(const FileReader& read, const std::string& folder) {
  const std::string text = read(folder + "/cpu.max").value_or("");
  std::string_view rest = text;
  const std::string_view quota = take_until(rest, ' ');
  return ratio(positive_number(quota), positive_number(rest));
}

double limit_v1(const FileReader& read, const std::string& folder) {
  const std::string quota = read(folder + "/cpu.cfs_quota_us").value_or("");
  const std::string period = read(folder + "/cpu.cfs_period_us").value_or("");
  return ratio(positive_number(quota), positive_number(period));
}

void lower(double& limit, double other) {
  if (other > 0 && (limit <= 0 || other < limit)) limit = other;
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path) {
  constexpr std::size_t kMost = 65536;
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text(kMost, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::vector<CgroupFolder> cgroup_folders(const FileReader& read, std::string_view controller) {
  const std::string text = read("/proc/self/cgroup").value_or("");
  std::string_view lines = text;
  std::vector<CgroupFolder> folders;
  while (!lines.empty()) {
    std::string_view line = take_until(lines, '\n');
    const std::string_view hierarchy = take_until(line, ':');
    const std::string controllers(take_until(line, ':'));
    if (hierarchy == "0" && controllers.empty()) {
      for (const char* const mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        add_with_parents(folders, mount, line, 2);
      }
    } else if (lists(controllers, controller)) {
      add_with_parents(folders, "/sys/fs/cgroup/" + controllers, line, 1);
      add_with_parents(folders, "/sys/fs/cgroup/" + std::string(controller), line, 1);
    }
  }
  return folders;
}

double positive_number(std::string_view text) noexcept {
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end != text.data() && number > 0 ? static_cast<double>(number) : 0;
}

double cgroup_cpu_limit(const FileReader& read) {
  double least = 0;
  for (const CgroupFolder& folder : cgroup_folders(read, "cpu")) {
    lower(least, folder.version == 2 ? limit_v2(read, folder.path) : limit_v1(read, folder.path));
  }
  return least;
}

namespace {

/// None where the text does not begin with a number ("max").
std::optional<std::uint64_t> number_of(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

/// The number after `name` at the beginning of a line.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = take_until(text, '\n');
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    return number_of(line);
  }
  return std::nullopt;
}

struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* cache;  ///< in memory.stat
};

std::optional<std::uint64_t> left_in(const FileReader& read, const CgroupFolder& folder) {
  const MemoryFiles files =
      folder.version == 2
          ? MemoryFiles{"/memory.max", "/memory.current", "inactive_file "}
          : MemoryFiles{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "};
  const auto limit = number_of(read(folder.path + files.limit).value_or(""));
  const auto usage = number_of(read(folder.path + files.usage).value_or(""));
  if (!limit || !usage) return std::nullopt;
  const auto cache = number_after(read(folder.path + "/memory.stat").value_or(""), files.cache);
  const std::uint64_t used = *usage - std::min(*usage, cache.value_or(0));
  return *limit - std::min(*limit, used);
}

}  // namespace

std::uint64_t available_memory(const FileReader& read) {
  const auto kib = number_after(read("/proc/meminfo").value_or(""), "MemAvailable:");
  std::optional<std::uint64_t> least;
  if (kib) least = *kib * 1024;
  for (const CgroupFolder& folder : cgroup_folders(read, "memory")) {
    const auto left = left_in(read, folder);
    // A limit that is used up counts as one byte: 0 is unknown.
    if (left) least = std::min(least.value_or(*left), std::max<std::uint64_t>(1, *left));
  }
  return least.value_or(0);
}

std::uint64_t oom_kills(const FileReader& read) {
  for (const CgroupFolder& folder : cgroup_folders(read, "memory")) {
    const char* file = folder.version == 2 ? "/memory.events" : "/memory.oom_control";
    const auto kills = number_after(read(folder.path + file).value_or(""), "oom_kill ");
    if (kills) return *kills;
  }
  return 0;
}

}  // namespace hora::launch
