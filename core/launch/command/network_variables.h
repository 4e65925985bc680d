/// The interfaces of a host, as the libraries of its ranks take them. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/launch/command/command.h"

namespace hora::launch {

/// For ranks on a host that reaches the others by `interfaces` (names of this host, the first
/// preferred): NCCL_SOCKET_IFNAME (exact names, by "="), GLOO_SOCKET_IFNAME and FI_TCP_IFACE (one
/// name), UCX_NET_DEVICES. The latter is left out where the host has RDMA devices, for it would
/// keep UCX from them; NCCL's variable concerns sockets alone. None without interfaces. What the
/// user has set is for the caller to leave (without_users_own()).
std::vector<Variable> network_variables(const std::vector<std::string>& interfaces, bool has_rdma);

/// True where /sys/class/infiniband lists a device (InfiniBand or RoCE).
bool has_rdma_device();

}  // namespace hora::launch
