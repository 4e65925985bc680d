#include "ops/context/gpu/agreement.h"

#include <hora/error.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/bounded_reader.h"
#include "core/log.h"
#include "ops/context/gpu/device_staging.h"
#include "ops/context/gpu/identity.h"
#include "ops/context/gpu/links.h"

namespace hora {
namespace {

std::vector<GpuIdentity> all_gpus(const Communicator& world, const GpuIdentity& mine) {
  const std::string lines = to_lines(mine);
  std::vector<GpuIdentity> by_rank;
  for (const auto& bytes : world.all_gather(std::as_bytes(std::span(lines)))) {
    by_rank.push_back(gpu_from_lines({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  return by_rank;
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

void report_links(const CudaFunctions& cuda, const Communicator& world, const Topology& topology,
                  int device, const std::vector<GpuIdentity>& by_rank) {
  NodeGpus gpus;
  gpus.node = topology.node_of(world.rank());
  gpus.ranks = topology.ranks_of_node[static_cast<std::size_t>(gpus.node)];
  const GpuIdentity& mine = by_rank[static_cast<std::size_t>(world.rank())];
  gpus.host = mine.host;
  gpus.transports = {.p2p = !is_set("NCCL_P2P_DISABLE"), .shm = !is_set("NCCL_SHM_DISABLE")};
  for (const int rank : gpus.ranks) {
    const GpuIdentity& gpu = by_rank[static_cast<std::size_t>(rank)];
    gpus.bus_ids.push_back(gpu.bus_id);
    gpus.transports.one_host &= gpu.nccl_host == mine.nccl_host;
  }
  const auto row = links_from(cuda, device, gpus.bus_ids);
  const auto rows = world.all_gather(std::as_bytes(std::span(row)));
  if (world.rank() != gpus.ranks.front()) return;
  for (const int rank : gpus.ranks) {
    gpus.links.push_back(links_of(rows[static_cast<std::size_t>(rank)], rank));
  }
  log().info(describe(gpus));
}

}  // namespace

void check_gpus(const CudaFunctions& cuda, const Communicator& world, const Topology& topology,
                int device) {
  const auto by_rank = all_gpus(world, gpu_identity(cuda, device));
  const std::string problem = shared_gpu(by_rank, topology);
  if (!problem.empty()) throw Error(ErrorCode::invalid_use, problem);
  report_links(cuda, world, topology, device, by_rank);
}

bool agree_on_device_staging(const Communicator& world, const Settings& settings, int nodes) {
  if (nodes == 1) return false;
  const CudaSupport mine = mpi_cuda_support();
  std::vector<CudaSupport> by_rank;
  for (const auto& bytes : world.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    by_rank.push_back(static_cast<CudaSupport>(bytes.front()));
  }
  const auto choice = choose_device_staging(settings.cuda_aware_mpi, by_rank, nodes);
  if (world.rank() == 0) {
    log().log(choice.doubtful ? spdlog::level::warn : spdlog::level::info, choice.reason);
  }
  return choice.on_device;
}

}  // namespace hora
