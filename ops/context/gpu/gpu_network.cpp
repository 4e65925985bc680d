#include "ops/context/gpu/gpu_network.h"

#include <hora/error.h>
#include <strings.h>

#include <algorithm>
#include <cstdlib>

#include "core/base/log.h"

namespace hora::internal {
namespace {

constexpr const char* kByNccl = "between nodes, collectives on GPUs go through NCCL";
constexpr const char* kByMpi = "between nodes, collectives on GPUs go through MPI";

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

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

}  // namespace

NetworkFacts network_facts() {
  return {.net = environment("NCCL_NET"),
          .plugin = environment("NCCL_NET_PLUGIN"),
          .ib_disable = environment("NCCL_IB_DISABLE"),
          .active_ports = active_rdma_ports()};
}

NcclNetwork network_of(const NetworkFacts& facts) {
  const bool takes_ib = is_same(facts.net, "IB");
  if (is_same(facts.net, "Socket")) return {.name = {}, .reason = "NCCL_NET=" + facts.net};
  if (!facts.net.empty() && !takes_ib) {
    return {.name = facts.net, .reason = "NCCL_NET=" + facts.net};
  }
  if (!takes_ib && !facts.plugin.empty() && !is_same(facts.plugin, "none")) {
    return {.name = "the plugin " + facts.plugin, .reason = "NCCL_NET_PLUGIN=" + facts.plugin};
  }
  if (!facts.ib_disable.empty() && facts.ib_disable != "0") {
    return {.name = {}, .reason = "NCCL_IB_DISABLE=" + facts.ib_disable};
  }
  if (facts.active_ports.empty()) {
    return {.name = {}, .reason = std::string("no port is active in ") + kRdmaDevices};
  }
  return {.name = "InfiniBand or RoCE", .reason = facts.active_ports.front() + " is active"};
}

GpuNetworkChoice choose_gpu_network(GpuNetwork setting, std::span<const NcclNetwork> by_rank,
                                    const std::string& shared) {
  switch (setting) {
    case GpuNetwork::mpi:
      return {.by_nccl = false, .reason = std::string(kByMpi) + ": HORA_GPU_NETWORK=mpi"};
    case GpuNetwork::nccl:
      return {.by_nccl = true,
              .reason = std::string(kByNccl) + ": HORA_GPU_NETWORK=nccl; on rank 0 it has " +
                        text_of(by_rank.front())};
    case GpuNetwork::automatic:
      break;
  }
  const std::string why_not = objection(by_rank, shared);
  if (!why_not.empty()) {
    return {
        .by_nccl = false,
        .reason = std::string(kByMpi) + ": " + why_not + " (HORA_GPU_NETWORK=nccl overrides that)"};
  }
  return {.by_nccl = true,
          .reason = std::string(kByNccl) + ", which has " + text_of(by_rank.front()) +
                    " on rank 0, and the same network on every rank"};
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
  const GpuNetworkChoice choice = choose_gpu_network(setting, by_rank, shared);
  if (choice.by_nccl && !shared.empty()) {
    throw Error(ErrorCode::invalid_use,
                "HORA_GPU_NETWORK=nccl: " + shared +
                    ": give each rank a GPU of its own, or set HORA_GPU_NETWORK=mpi. To try the "
                    "program out: another NCCL_HOSTID for each rank, slow");
  }
  if (world.rank() == 0) log().info(choice.reason);
  return choice.by_nccl;
}

}  // namespace hora::internal
