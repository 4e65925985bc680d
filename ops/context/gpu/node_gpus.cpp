#include <fmt/format.h>
#include <hora/error.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "core/base/log.h"
#include "core/base/process.h"
#include "ops/context/gpu.h"
#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// 8-4-4-4-12 hexadecimal digits (RFC 9562, section 4).
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

/// "0, 2 and 3".
std::string names(std::span<const int> ranks) {
  return fmt::format("{} and {}", fmt::join(ranks.first(ranks.size() - 1), ", "), ranks.back());
}

/// The first of these ranks, in order, whose GPUs have one `id` and are one to NCCL; empty: none.
std::vector<int> sharing(const std::vector<GpuIdentity>& by_rank, std::span<const int> among,
                         std::string GpuIdentity::*id) {
  for (const int rank : among) {
    const GpuIdentity& first = by_rank[static_cast<std::size_t>(rank)];
    std::vector<int> ranks;
    for (const int other : among) {
      const GpuIdentity& gpu = by_rank[static_cast<std::size_t>(other)];
      if (gpu.*id == first.*id && gpu.nccl_host == first.nccl_host && !gpu.shares) {
        ranks.push_back(other);
      }
    }
    if (ranks.size() > 1) return ranks;
  }
  return {};
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

constexpr const char* kByNccl = "between nodes, collectives on GPUs go through NCCL";
constexpr const char* kByMpi = "between nodes, collectives on GPUs go through MPI";

/// As NCCL compares names of networks.
bool is_same(const std::string& a, const char* b) {
  return ::strcasecmp(a.c_str(), b) == 0;
}

std::string text_of(const NcclNetwork& network) {
  return (network.name.empty() ? "sockets alone" : network.name) + " (" + network.reason + ")";
}

/// Why `automatic` does not take NCCL; empty where it does.
std::string objection(std::span<const NcclNetwork> by_rank, const std::string& shared) {
  const auto differs = [&](const NcclNetwork& network) {
    return network.name.empty() || network.name != by_rank.front().name;
  };
  const auto other = std::ranges::find_if(by_rank, differs);
  if (other != by_rank.end()) {
    const std::string own =
        "on rank " + std::to_string(other - by_rank.begin()) + " NCCL has " + text_of(*other);
    if (other->name.empty()) return own;
    return own + ", and on rank 0 " + text_of(by_rank.front());
  }
  return shared;
}

constexpr const char* kStraight = "between nodes, GPU memory goes straight into MPI";
constexpr const char* kPinned = "between nodes, GPU memory goes through pinned host memory";

/// "MPI on rank 3 says that it takes no GPU memory".
std::string objection(std::span<const CudaSupport> by_rank) {
  const auto doubt = std::ranges::find_if(
      by_rank, [](CudaSupport support) { return support != CudaSupport::yes; });
  return "MPI on rank " + std::to_string(doubt - by_rank.begin()) +
         (*doubt == CudaSupport::no ? " says that it takes no GPU memory"
                                    : " cannot be asked whether it takes GPU memory");
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
  return fmt::format("{}\n{}\n{}\n{}\n{:d}", gpu.host, gpu.nccl_host, gpu.bus_id, gpu.uuid,
                     gpu.shares);
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
    const std::vector<int> ranks = sharing(by_rank, node, &GpuIdentity::bus_id);
    if (!ranks.empty()) return refusal(by_rank, ranks);
  }
  return {};
}

std::string shared_over_nodes(const std::vector<GpuIdentity>& by_rank) {
  std::vector<int> all(by_rank.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int> ranks = sharing(by_rank, all, &GpuIdentity::uuid);
  if (ranks.empty()) return {};
  const GpuIdentity& gpu = by_rank[static_cast<std::size_t>(ranks.front())];
  return fmt::format(
      "ranks {} on host {} share the GPU {} ({}), and NCCL takes one rank of a "
      "communicator on each GPU",
      names(ranks), gpu.host, gpu.bus_id, gpu.uuid);
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

NcclNetwork network_of(const EnvironmentLookup& lookup,
                       const std::vector<std::string>& active_ports) {
  const auto value = [&](const char* name) {
    const char* const found = lookup(name);
    return std::string(found ? found : "");
  };
  const std::string net = value("NCCL_NET");
  const std::string plugin = value("NCCL_NET_PLUGIN");
  const std::string disable = value("NCCL_IB_DISABLE");
  const bool takes_ib = is_same(net, "IB");
  if (is_same(net, "Socket")) return {.name = {}, .reason = "NCCL_NET=" + net};
  if (!net.empty() && !takes_ib) return {.name = net, .reason = "NCCL_NET=" + net};
  if (!takes_ib && !plugin.empty() && !is_same(plugin, "none")) {
    return {.name = "the plugin " + plugin, .reason = "NCCL_NET_PLUGIN=" + plugin};
  }
  if (!disable.empty() && disable != "0") {
    return {.name = {}, .reason = "NCCL_IB_DISABLE=" + disable};
  }
  if (active_ports.empty()) {
    return {.name = {}, .reason = fmt::format("no port is active in {}", kRdmaDevices)};
  }
  return {.name = "InfiniBand or RoCE", .reason = active_ports.front() + " is active"};
}

GpuChoice choose_gpu_network(GpuNetwork setting, std::span<const NcclNetwork> by_rank,
                             const std::string& shared) {
  const bool is_set = setting == GpuNetwork::nccl;
  if (setting == GpuNetwork::mpi) {
    return {.taken = false, .reason = fmt::format("{}: HORA_GPU_NETWORK=mpi", kByMpi)};
  }
  const std::string why_not = is_set ? "" : objection(by_rank, shared);
  if (!why_not.empty()) {
    return {
        .taken = false,
        .reason = fmt::format("{}: {} (HORA_GPU_NETWORK=nccl overrides that)", kByMpi, why_not)};
  }
  const std::string own = text_of(by_rank.front());
  return {
      .taken = true,
      .reason = is_set ? fmt::format("{}: HORA_GPU_NETWORK=nccl; on rank 0 it has {}", kByNccl, own)
                       : fmt::format("{}, which has {} on rank 0, and the same network on every "
                                     "rank",
                                     kByNccl, own)};
}

bool agree_on_gpu_network(Bootstrap& world, const NcclNetwork& own, GpuNetwork setting, int nodes,
                          const std::vector<GpuIdentity>& gpu_by_rank) {
  if (nodes == 1) return false;
  const auto names = gather_texts(world, own.name);
  const auto reasons = gather_texts(world, own.reason);
  std::vector<NcclNetwork> by_rank;
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    by_rank.push_back({.name = names[rank], .reason = reasons[rank]});
  }
  const std::string shared = shared_over_nodes(gpu_by_rank);
  const GpuChoice choice = choose_gpu_network(setting, by_rank, shared);
  if (choice.taken && !shared.empty()) {
    throw Error(ErrorCode::invalid_use,
                "HORA_GPU_NETWORK=nccl: " + shared +
                    ": give each rank a GPU of its own, or set HORA_GPU_NETWORK=mpi. To try the "
                    "program out: another NCCL_HOSTID for each rank, slow");
  }
  if (world.rank() == 0) log().info(choice.reason);
  return choice.taken;
}

GpuChoice choose_device_staging(CudaAwareMpi setting, std::span<const CudaSupport> by_rank,
                                int nodes) {
  if (setting == CudaAwareMpi::off) {
    return {.reason = fmt::format("{}: HORA_CUDA_AWARE_MPI=off", kPinned)};
  }
  constexpr auto kMostNodes = static_cast<int>(DeviceReduction::kMaximumInputs);
  if (nodes > kMostNodes) {
    return {.reason =
                fmt::format("{}: there are more than {} nodes, which the GPU's sum does not take",
                            kPinned, kMostNodes)};
  }
  const bool all =
      std::ranges::all_of(by_rank, [](CudaSupport support) { return support == CudaSupport::yes; });
  if (all) {
    return {.taken = true,
            .reason = fmt::format("{}, which says on every rank that it takes it", kStraight)};
  }
  if (setting == CudaAwareMpi::on) {
    return {.taken = true,
            .doubtful = true,
            .reason = fmt::format("{}, as HORA_CUDA_AWARE_MPI=on has it, though {}: if the job "
                                  "crashes in MPI, that is why; then set it to auto",
                                  kStraight, objection(by_rank))};
  }
  return {.reason = fmt::format("{}: {} (HORA_CUDA_AWARE_MPI=on overrides that)", kPinned,
                                objection(by_rank))};
}

bool agree_on_device_staging(Bootstrap& world, CudaSupport own, const Settings& settings,
                             int nodes) {
  if (nodes == 1) return false;
  const auto by_rank = all_gather_values(world, own);
  const auto choice = choose_device_staging(settings.cuda_aware_mpi, by_rank, nodes);
  if (world.rank() == 0) {
    log().log(choice.doubtful ? spdlog::level::warn : spdlog::level::info, choice.reason);
  }
  return choice.taken;
}

}  // namespace hora::internal
