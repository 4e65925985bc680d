#include "ops/context/gpu/identity.h"

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "core/process.h"
#include "ops/cuda/functions.h"

namespace hora {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// 8-4-4-4-12 hexadecimal digits (RFC 9562, section 4).
std::string uuid_text(const cudaUUID_t& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return text;
}

std::string names(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// The ranks of `node` whose GPU is the same to NCCL as that of `rank`, in order.
std::vector<int> together(const std::vector<GpuIdentity>& by_rank, const std::vector<int>& node,
                          int rank) {
  const GpuIdentity& first = by_rank[static_cast<std::size_t>(rank)];
  std::vector<int> ranks;
  for (const int other : node) {
    const GpuIdentity& gpu = by_rank[static_cast<std::size_t>(other)];
    if (gpu.bus_id == first.bus_id && gpu.nccl_host == first.nccl_host && !gpu.shares) {
      ranks.push_back(other);
    }
  }
  return ranks;
}

std::string refusal(const std::vector<GpuIdentity>& by_rank, const std::vector<int>& ranks) {
  const GpuIdentity& gpu = by_rank[static_cast<std::size_t>(ranks.front())];
  const bool one = std::ranges::all_of(
      ranks, [&](int rank) { return by_rank[static_cast<std::size_t>(rank)].uuid == gpu.uuid; });
  return "ranks " + names(ranks) + " on host " + gpu.host +
         (one ? " share the GPU " + gpu.bus_id + " (" + gpu.uuid + ")"
              : " have parts (MIG) of the GPU " + gpu.bus_id) +
         ", but NCCL takes one rank of a node on each GPU: start fewer ranks on this host, or let "
         "each see a GPU of its own (CUDA_VISIBLE_DEVICES). To try the program out: "
         "HORA_RANKS_PER_NODE=1, or another NCCL_HOSTID for each rank, both slow";
}

}  // namespace

GpuIdentity gpu_identity(const CudaFunctions& cuda, int device) {
  cudaDeviceProp properties{};
  cuda_check(cuda, cuda.get_device_properties(&properties, device), "cudaGetDeviceProperties");
  std::array<char, 32> bus{};
  cuda_check(cuda, cuda.device_get_pci_bus_id(bus.data(), static_cast<int>(bus.size()), device),
             "cudaDeviceGetPCIBusId");
  return {.host = host_name(),
          .nccl_host = environment("NCCL_HOSTID"),
          .bus_id = bus.data(),
          .uuid = uuid_text(properties.uuid),
          .shares = environment("NCCL_MULTI_RANK_GPU_ENABLE") == "1"};
}

std::string to_lines(const GpuIdentity& gpu) {
  return gpu.host + "\n" + gpu.nccl_host + "\n" + gpu.bus_id + "\n" + gpu.uuid + "\n" +
         (gpu.shares ? "1" : "0");
}

GpuIdentity gpu_from_lines(const std::string& lines) {
  std::istringstream text(lines);
  GpuIdentity gpu;
  std::string shares;
  for (std::string* field : {&gpu.host, &gpu.nccl_host, &gpu.bus_id, &gpu.uuid, &shares}) {
    std::getline(text, *field);
  }
  gpu.shares = shares == "1";
  return gpu;
}

std::string shared_gpu(const std::vector<GpuIdentity>& by_rank, const Topology& topology) {
  for (const std::vector<int>& node : topology.ranks_of_node) {
    for (const int rank : node) {
      const std::vector<int> ranks = together(by_rank, node, rank);
      if (ranks.size() > 1) return refusal(by_rank, ranks);
    }
  }
  return {};
}

std::vector<GpuIdentity> check_gpus(const CudaFunctions& cuda, Bootstrap& world,
                                    const Topology& topology, int device) {
  std::vector<GpuIdentity> by_rank;
  for (const std::string& lines : gather_texts(world, to_lines(gpu_identity(cuda, device)))) {
    by_rank.push_back(gpu_from_lines(lines));
  }
  const std::string problem = shared_gpu(by_rank, topology);
  if (!problem.empty()) throw Error(ErrorCode::invalid_use, problem);
  return by_rank;
}

}  // namespace hora
