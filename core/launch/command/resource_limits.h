/// How much of a host's time and memory this process, and so the ranks that it starts, may take:
/// what cgroups (version 1 or 2) leave.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hora::launch {

/// A file's contents, where it can be read.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

/// The first 64 KiB of a file. Any thread.
std::optional<std::string> read_small_file(const std::string& path);

struct CgroupFolder {
  std::string path;
  int version = 2;  ///< of cgroups: 1 or 2

  bool operator==(const CgroupFolder&) const = default;
};

/// 0 where the text is no positive number ("max", "-1").
double positive_number(std::string_view text) noexcept;

/// The folders of the cgroups of `controller` ("cpu", "memory") that /proc/self/cgroup names, each
/// with those above it, up to the root: all of them limit this process. Within a container a path
/// may not be there. Pure but for `read`.
std::vector<CgroupFolder> cgroup_folders(const FileReader& read, std::string_view controller);

/// The least quota of the folders of "cpu", in CPUs' worth of time; 0: none. Pure but for `read`.
double cgroup_cpu_limit(const FileReader& read);

/// Bytes: the least of MemAvailable (/proc/meminfo) and of what the memory cgroups leave, whose
/// page cache counts as available; 0: unknown. Pure but for `read`.
std::uint64_t available_memory(const FileReader& read);

/// Processes of this one's memory cgroup that the kernel has killed for lack of memory, so far; 0:
/// none, or unknown. Pure but for `read`.
std::uint64_t oom_kills(const FileReader& read);

}  // namespace hora::launch
