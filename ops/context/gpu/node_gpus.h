/// The GPUs of a node's ranks: which each works on, that NCCL will take them together, and how they
/// are linked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/negotiation/topology.h"
#include "ops/cross/point_to_point.h"
#include "ops/cuda/functions.h"

namespace hora::internal {

struct GpuIdentity {
  std::string host;
  std::string nccl_host;  ///< NCCL_HOSTID: ranks that differ in it are on two hosts to NCCL
  std::string bus_id;     ///< "0000:17:00.0"
  /// As nvidia-smi writes it, without the prefix. Parts of one GPU (MIG) have one bus id, but each
  /// a UUID of its own.
  std::string uuid;
  bool shares = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE: a newer NCCL that takes several ranks a GPU

  bool operator==(const GpuIdentity&) const = default;
};

/// Of this process's `device`. Throws Error(transport).
GpuIdentity gpu_identity(const CudaFunctions& cuda, int device);

/// As text that is sent to other ranks.
std::string to_lines(const GpuIdentity& gpu);
GpuIdentity gpu_from_lines(const std::string& lines);

/// Why NCCL would refuse the ranks of a node, with what to do; empty where it will not: it compares
/// host and bus id, and refuses two ranks on one GPU, parts of it included. Pure, so all ranks come
/// to the same text.
std::string shared_gpu(const std::vector<GpuIdentity>& by_rank, const Topology& topology);

/// Likewise of all ranks in one communicator, whatever their nodes: "ranks 0 and 1 on host h share
/// the GPU ..". Parts (MIG) of one GPU on different nodes are not recognised. Pure.
std::string shared_over_nodes(const std::vector<GpuIdentity>& by_rank);

/// The GPU of each rank, this one's being `device`. Collective. Throws the same Error(invalid_use)
/// on every rank where NCCL would refuse a node's GPUs.
std::vector<GpuIdentity> check_gpus(const CudaFunctions& cuda, Bootstrap& world,
                                    const Topology& topology, int device);

/// How two GPUs of a node are linked: facts for the log.
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

}  // namespace hora::internal
