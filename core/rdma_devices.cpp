#include <algorithm>
#include <fstream>
#include <system_error>

#include "core/base/process.h"

namespace hora::internal {
namespace {

/// Names in a folder, in order; none where it cannot be read.
std::vector<std::string> entries(const std::filesystem::path& folder) {
  std::error_code failed;
  std::vector<std::string> names;
  for (auto entry = std::filesystem::directory_iterator(folder, failed);
       !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

/// The kernel writes "4: ACTIVE" (enum ib_port_state).
bool is_active(const std::filesystem::path& port) {
  std::ifstream file(port / "state");
  std::string state;
  std::getline(file, state);
  return state.starts_with("4:");
}

}  // namespace

std::vector<std::string> active_rdma_ports(const std::filesystem::path& devices) {
  std::vector<std::string> active;
  for (const std::string& device : entries(devices)) {
    const std::filesystem::path ports = devices / device / "ports";
    for (const std::string& port : entries(ports)) {
      if (is_active(ports / port)) active.push_back(device + " port " + port);
    }
  }
  return active;
}

}  // namespace hora::internal
