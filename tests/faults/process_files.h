/// What /proc says of the processes of this machine.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace hora::launch::test {

/// Their folders in /proc.
inline std::vector<std::filesystem::path> process_folders() {
  std::vector<std::filesystem::path> result;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") == name.npos) result.push_back(entry->path());
  }
  return result;
}

}  // namespace hora::launch::test
