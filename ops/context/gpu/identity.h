/// Which GPU each rank works on, and that NCCL will take them together.
#pragma once

#include <string>
#include <vector>

#include "core/negotiation/topology.h"
#include "ops/cross/bootstrap.h"
#include "ops/cuda/functions.h"

namespace hora {

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

/// The GPU of each rank, this one's being `device`. Collective. Throws the same Error(invalid_use)
/// on every rank where NCCL would refuse a node's GPUs.
std::vector<GpuIdentity> check_gpus(const CudaFunctions& cuda, Bootstrap& world,
                                    const Topology& topology, int device);

}  // namespace hora
