#include "core/launch/command/cgroup.h"

#include <algorithm>
#include <fstream>

namespace hora::launch {
namespace {

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

std::string_view take_until(std::string_view& text, char end) {
  const std::size_t length = std::min(text.find(end), text.size());
  const std::string_view taken = text.substr(0, length);
  text.remove_prefix(std::min(length + 1, text.size()));
  return taken;
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

}  // namespace hora::launch
