/// Whether collectives on GPUs cross nodes by MPI, or in one NCCL communicator over all ranks.
#pragma once

#include <hora/settings.h>

#include <span>
#include <string>
#include <vector>

#include "core/base/process.h"
#include "ops/context/gpu/node_gpus.h"
#include "ops/cross/point_to_point.h"

namespace hora::internal {

/// What decides over which network NCCL connects this rank with other hosts.
struct NetworkFacts {
  std::string net;                        ///< NCCL_NET
  std::string plugin;                     ///< NCCL_NET_PLUGIN
  std::string ib_disable;                 ///< NCCL_IB_DISABLE
  std::vector<std::string> active_ports;  ///< of InfiniBand and RoCE: "mlx5_0 port 1", in order
};

/// From the environment and active_rdma_ports().
NetworkFacts network_facts();

/// The network that NCCL takes on a rank.
struct NcclNetwork {
  std::string name;    ///< empty: sockets
  std::string reason;  ///< the fact that decides: "NCCL_IB_DISABLE=1"
  bool operator==(const NcclNetwork&) const = default;
};

/// NCCL's order: that which NCCL_NET names (Socket and IB are NCCL's own, any other is a plugin's);
/// else the plugin of NCCL_NET_PLUGIN, but for "none"; else InfiniBand and RoCE where a port is
/// active and NCCL_IB_DISABLE is not set to anything but 0; else sockets. Pure.
NcclNetwork network_of(const NetworkFacts& facts);

struct GpuNetworkChoice {
  bool by_nccl = false;
  std::string reason;  ///< for the log, a sentence without full stop
};

/// Of a job of several nodes. `by_rank`: the network of each; `shared`: why NCCL would refuse the
/// ranks' GPUs in one communicator, empty where it will not. `automatic` takes NCCL where every
/// rank has the same network, which is not sockets, and nothing is shared. Pure, so the same on all
/// ranks for the same arguments.
GpuNetworkChoice choose_gpu_network(GpuNetwork setting, std::span<const NcclNetwork> by_rank,
                                    const std::string& shared);

/// Whether one communicator connects the GPUs of all nodes: the same answer on every rank, logged
/// by rank 0; false in a job of one node. Collective. Throws the same Error(invalid_use) on every
/// rank where HORA_GPU_NETWORK=nccl and NCCL would refuse that.
bool agree_on_gpu_network(Bootstrap& world, const NcclNetwork& own, GpuNetwork setting, int nodes,
                          const std::vector<GpuIdentity>& gpu_by_rank);

}  // namespace hora::internal
