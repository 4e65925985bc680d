#include "tests/faults/shared_objects.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "tests/faults/process_files.h"
#include "tests/support/read_file.h"

namespace hora::launch::test {
namespace {

namespace fs = std::filesystem;

constexpr char kFolder[] = "/dev/shm/";
constexpr char kSegment[] = "System V segment ";

/// Of files in /dev/shm: Open MPI's, MPICH's, and hora's own.
bool is_memory_of_jobs(const std::string& name) {
  constexpr std::array<std::string_view, 5> kBeginnings{"horarun-", "vader_segment", "sm_segment",
                                                        "osc_", "mpich_shar_tmp"};
  return name.find("hora") != std::string::npos ||
         std::ranges::any_of(kBeginnings, [&](auto start) { return name.starts_with(start); });
}

/// A line of /proc/sysvipc/shm or sem.
struct SystemVObject {
  std::string number;
  bool is_attached = false;  ///< of segments
};

std::vector<SystemVObject> system_v(const char* kind) {
  const bool is_memory = std::string_view(kind) == "shm";
  std::vector<SystemVObject> result;
  std::ifstream file(std::string("/proc/sysvipc/") + kind);
  std::string line;
  std::getline(file, line);  // the columns' titles
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key, number, permissions, size, creator, last;
    int attached = 0;
    words >> key >> number >> permissions >> size;
    if (is_memory) words >> creator >> last >> attached;
    if (words) result.push_back({number, attached > 0});
  }
  return result;
}

}  // namespace

std::set<std::string> shared_objects() {
  std::set<std::string> objects;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kFolder, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("sem.")) objects.insert("semaphore " + entry.path().string());
    if (is_memory_of_jobs(name)) objects.insert("shared memory " + entry.path().string());
  }
  for (const auto& segment : system_v("shm")) objects.insert(kSegment + segment.number);
  for (const auto& each : system_v("sem")) objects.insert("System V semaphores " + each.number);
  return objects;
}

bool is_used(const std::string& object) {
  if (object.starts_with(kSegment)) {
    const auto segments = system_v("shm");
    return std::ranges::any_of(segments, [&](const SystemVObject& each) {
      return each.is_attached && kSegment + each.number == object;
    });
  }
  const auto path = object.find(kFolder);
  if (path == object.npos) return false;
  const std::string name = object.substr(path + std::string_view(kFolder).size());
  return std::ranges::any_of(process_folders(), [&](const fs::path& process) {
    return std::ranges::any_of(std::array{"environ", "maps", "cmdline"}, [&](const char* file) {
      return internal::test::read_file(process / file).find(name) != std::string::npos;
    });
  });
}

}  // namespace hora::launch::test
