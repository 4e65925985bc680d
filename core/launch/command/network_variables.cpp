#include "core/launch/command/network_variables.h"

#include <filesystem>
#include <system_error>

namespace hora::launch {

std::vector<Variable> network_variables(const std::vector<std::string>& interfaces, bool has_rdma) {
  if (interfaces.empty()) return {};
  std::string names;
  for (const std::string& name : interfaces) names += (names.empty() ? "" : ",") + name;
  std::vector<Variable> variables = {{"NCCL_SOCKET_IFNAME", "=" + names},
                                     {"GLOO_SOCKET_IFNAME", interfaces.front()},
                                     {"FI_TCP_IFACE", interfaces.front()}};
  if (!has_rdma) variables.push_back({"UCX_NET_DEVICES", names});
  return variables;
}

bool has_rdma_device() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator{};
}

}  // namespace hora::launch
