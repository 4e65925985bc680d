#include "core/launch/command/available_memory.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace hora::launch {
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

}  // namespace hora::launch
