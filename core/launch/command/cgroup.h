/// Which cgroups limit this process.
#pragma once

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

/// The folders of the cgroups of `controller` ("cpu", "memory") that /proc/self/cgroup names, each
/// with those above it, up to the root: all of them limit this process. Within a container a path
/// may not be there. Pure but for `read`.
std::vector<CgroupFolder> cgroup_folders(const FileReader& read, std::string_view controller);

/// Removed from the front of `text`, up to `end`, which is removed, too.
std::string_view take_until(std::string_view& text, char end);

}  // namespace hora::launch
