/// Whether a host has a faster network than sockets.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hora::internal {

/// The system's RDMA devices: those of InfiniBand, RoCE, Omni-Path and EFA.
inline constexpr const char* kRdmaDevices = "/sys/class/infiniband";

/// Their active ports, "mlx5_0 port 1", in order; of a folder laid out as kRdmaDevices, which need
/// not exist.
std::vector<std::string> active_rdma_ports(const std::filesystem::path& devices = kRdmaDevices);

}  // namespace hora::internal
