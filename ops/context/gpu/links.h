/// How the GPUs of a node are linked: facts for the log.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/negotiation/topology.h"
#include "ops/context/gpu/identity.h"
#include "ops/cross/bootstrap.h"
#include "ops/cuda/functions.h"

namespace hora {

enum class LinkKind : std::uint8_t {
  unknown,    ///< the peer's GPU is not visible to this process (CUDA_VISIBLE_DEVICES)
  same,       ///< one GPU, or parts of one
  no_access,  ///< neither GPU can read the other's memory
  pcie,       ///< it can, without atomic operations
  nvlink,     ///< with them: CUDA has native atomics over NVLink alone
};

struct GpuLink {
  LinkKind kind = LinkKind::unknown;
  /// cudaDevP2PAttrPerformanceRank, of pcie and nvlink: 0 is the fastest kind of this machine.
  int performance_rank = 0;
  bool operator==(const GpuLink&) const = default;
};

/// From `device` to the GPU of each bus id. What CUDA does not report is unknown; never throws for
/// CUDA's errors.
std::vector<GpuLink> links_from(const CudaFunctions& cuda, int device,
                                std::span<const std::string> bus_ids);

/// What NCCL's environment variables allow.
struct NcclTransports {
  bool p2p = true;       ///< NCCL_P2P_DISABLE
  bool shm = true;       ///< NCCL_SHM_DISABLE
  bool one_host = true;  ///< all ranks have one NCCL_HOSTID
};

/// One node's GPUs, by local rank; links[i][j] as rank i sees them.
struct NodeGpus {
  int node = 0;
  std::string host;
  std::vector<int> ranks;  ///< in the world
  std::vector<std::string> bus_ids;
  std::vector<std::vector<GpuLink>> links;
  NcclTransports transports;
};

/// One line: GPUs, the kind of link of each pair, and by which transports NCCL will connect them.
/// A pair's link is what either side knows of it. Pure.
std::string describe(const NodeGpus& gpus);

/// Each node's first rank logs how its GPUs (`by_rank`; this rank's is `device`) are linked.
/// Collective.
void report_links(const CudaFunctions& cuda, Bootstrap& world, const Topology& topology, int device,
                  const std::vector<GpuIdentity>& by_rank);

}  // namespace hora
