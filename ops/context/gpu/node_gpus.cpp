#include "ops/context/gpu/node_gpus.h"

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "core/base/checked.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace hora::internal {
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

std::string shared_over_nodes(const std::vector<GpuIdentity>& by_rank) {
  for (const GpuIdentity& gpu : by_rank) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      const GpuIdentity& other = by_rank[rank];
      if (other.uuid == gpu.uuid && other.nccl_host == gpu.nccl_host && !other.shares) {
        ranks.push_back(static_cast<int>(rank));
      }
    }
    if (ranks.size() > 1) {
      return "ranks " + names(ranks) + " on host " + gpu.host + " share the GPU " + gpu.bus_id +
             " (" + gpu.uuid + "), and NCCL takes one rank of a communicator on each GPU";
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

namespace {

/// What a call gives, where it succeeds. CUDA's last error is cleared for the application.
template <class Call>
std::optional<int> asked(const CudaFunctions& cuda, Call call) {
  int value = 0;
  if (call(&value) == cudaSuccess) return value;
  cuda.get_last_error();
  return std::nullopt;
}

GpuLink link_between(const CudaFunctions& cuda, int device, int peer) {
  if (peer == device) return {.kind = LinkKind::same};
  const auto access =
      asked(cuda, [&](int* can) { return cuda.device_can_access_peer(can, device, peer); });
  if (!access) return {};
  if (*access == 0) return {.kind = LinkKind::no_access};
  const auto attribute = [&](cudaDeviceP2PAttr which) {
    return asked(cuda, [&](int* value) {
      return cuda.device_get_p2p_attribute(value, which, device, peer);
    });
  };
  const auto rank = attribute(cudaDevP2PAttrPerformanceRank);
  const auto atomics = attribute(cudaDevP2PAttrNativeAtomicSupported);
  if (!rank || !atomics) return {};
  return {.kind = *atomics != 0 ? LinkKind::nvlink : LinkKind::pcie, .performance_rank = *rank};
}

std::string text_of(const GpuLink& link) {
  const std::string rank = " (performance rank " + std::to_string(link.performance_rank) + ")";
  switch (link.kind) {
    case LinkKind::unknown:
      return "unknown (not visible to each other)";
    case LinkKind::same:
      return "the same GPU";
    case LinkKind::no_access:
      return "no peer access";
    case LinkKind::pcie:
      return "PCIe" + rank;
    case LinkKind::nvlink:
      return "NVLink" + rank;
  }
  return {};
}

/// NCCL goes by distance over PCIe: SHM between GPUs of two CPUs, unless NCCL_P2P_LEVEL says else.
std::string transport_of(LinkKind kind, const NcclTransports& transports) {
  const std::string shm = transports.shm ? "SHM" : "network";
  if (!transports.one_host) return "network";
  if (!transports.p2p || kind == LinkKind::no_access) return shm;
  switch (kind) {
    case LinkKind::nvlink:
      return "P2P";
    case LinkKind::pcie:
      return "P2P or, between far GPUs, " + shm;
    default:
      return "unknown";
  }
}

std::string joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

struct Pairs {
  std::map<std::string, std::vector<std::string>> by_link;  ///< "NVLink (rank 0)": "4-5", "6-7"
  std::vector<std::string> transports;                      ///< distinct
};

Pairs pairs_of(const NodeGpus& gpus) {
  Pairs pairs;
  for (std::size_t i = 0; i < gpus.ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < gpus.ranks.size(); ++j) {
      const GpuLink& seen = gpus.links[i][j];
      const GpuLink& link = seen.kind == LinkKind::unknown ? gpus.links[j][i] : seen;
      pairs.by_link[text_of(link)].push_back(std::to_string(gpus.ranks[i]) + "-" +
                                             std::to_string(gpus.ranks[j]));
      const std::string transport = transport_of(link.kind, gpus.transports);
      if (std::ranges::count(pairs.transports, transport) == 0) {
        pairs.transports.push_back(transport);
      }
    }
  }
  return pairs;
}

/// The pairs of each kind, but those of the commonest one.
std::string links_text(const Pairs& pairs) {
  const auto commonest = std::ranges::max_element(
      pairs.by_link, {}, [](const auto& entry) { return entry.second.size(); });
  std::vector<std::string> parts;
  for (const auto& [link, names] : pairs.by_link) {
    if (link != commonest->first) parts.push_back(link + " " + joined(names, " "));
  }
  parts.push_back((parts.empty() ? "all " : "all others ") + commonest->first);
  return joined(parts, ", ");
}

std::vector<GpuLink> links_of(const std::vector<std::byte>& bytes, int rank) {
  BoundedReader reader(bytes, {.what = "the list of a GPU's links", .rank = rank});
  std::vector<GpuLink> links;
  while (reader.remaining() > 0) links.push_back(reader.take<GpuLink>());
  return links;
}

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value && std::string_view(value) != "0" && *value != '\0';
}

}  // namespace

std::vector<GpuLink> links_from(const CudaFunctions& cuda, int device,
                                std::span<const std::string> bus_ids) {
  std::vector<GpuLink> links;
  for (const std::string& bus_id : bus_ids) {
    const auto peer = asked(
        cuda, [&](int* index) { return cuda.device_get_by_pci_bus_id(index, bus_id.c_str()); });
    links.push_back(peer ? link_between(cuda, device, *peer) : GpuLink{});
  }
  return links;
}

std::string describe(const NodeGpus& gpus) {
  std::vector<std::string> members;
  for (std::size_t i = 0; i < gpus.ranks.size(); ++i) {
    members.push_back("rank " + std::to_string(gpus.ranks[i]) + " " + gpus.bus_ids[i]);
  }
  const std::string text = "node " + std::to_string(gpus.node) + " on " + gpus.host + ": GPUs of " +
                           joined(members, ", ");
  if (gpus.ranks.size() < 2) return text;
  const Pairs pairs = pairs_of(gpus);
  return text + "; links: " + links_text(pairs) + "; NCCL: " + joined(pairs.transports, "; ");
}

void report_links(const CudaFunctions& cuda, Bootstrap& world, const Topology& topology, int device,
                  const std::vector<GpuIdentity>& by_rank) {
  NodeGpus gpus;
  gpus.node = topology.node_of(world.rank());
  gpus.ranks = topology.ranks_of_node[static_cast<std::size_t>(gpus.node)];
  const GpuIdentity& own = by_rank[static_cast<std::size_t>(world.rank())];
  gpus.host = own.host;
  gpus.transports = {.p2p = !is_set("NCCL_P2P_DISABLE"), .shm = !is_set("NCCL_SHM_DISABLE")};
  for (const int rank : gpus.ranks) {
    const GpuIdentity& gpu = by_rank[static_cast<std::size_t>(rank)];
    gpus.bus_ids.push_back(gpu.bus_id);
    gpus.transports.one_host &= gpu.nccl_host == own.nccl_host;
  }
  const auto row = links_from(cuda, device, gpus.bus_ids);
  const auto rows = world.all_gather(std::as_bytes(std::span(row)));
  if (world.rank() != gpus.ranks.front()) return;
  for (const int rank : gpus.ranks) {
    gpus.links.push_back(links_of(rows[static_cast<std::size_t>(rank)], rank));
  }
  log().info(describe(gpus));
}

}  // namespace hora::internal
