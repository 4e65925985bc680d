/// Whether a host has a faster network than sockets.
#pragma once

#include <filesystem>

namespace hora::internal {

/// The system's RDMA devices: those of InfiniBand, RoCE, Omni-Path and EFA.
inline constexpr const char* kRdmaDevices = "/sys/class/infiniband";

/// True where the folder, laid out as kRdmaDevices, lists one. It need not exist.
bool has_rdma_device(const std::filesystem::path& devices = kRdmaDevices);

}  // namespace hora::internal
