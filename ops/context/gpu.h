/// This rank's GPU and its groups (CMake selects gpu_cuda.cpp or gpu_none.cpp), and the GPUs of all
/// ranks (gpu/node_gpus.cpp, with CUDA only): which each works on, that NCCL will take them
/// together, and how their data crosses nodes.
#pragma once

#include <hora/settings.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/control_block/node_control_block.h"
#include "core/engine/interfaces.h"
#include "core/negotiation/topology.h"
#include "ops/context/node_discovery.h"
#include "ops/cross/point_to_point.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/mpi/environment.h"

namespace hora::internal {

/// A process set, the world among them, on this GPU. Thread rule: the thread that holds the
/// engine's lock.
class GpuSet {
 public:
  virtual ~GpuSet() = default;
  virtual DeviceGroups groups() = 0;
  /// The set is removed. Collective over its groups' ranks, does not block. Throws
  /// Error(transport).
  virtual void disconnect() = 0;
};

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual int index() const = 0;
  virtual DevicePort& port() = 0;
  virtual DeviceHeap& heap() = 0;
  /// For a member of a set, of which `control_block` is the node's. The world (set 0) comes first
  /// and connects now, collective over its groups' ranks; others when first used. `messages`: those
  /// of the rank's cross group, null where it has none; they outlive the set.
  virtual std::unique_ptr<GpuSet> make_set(ProcessSet set, const PipelineOptions& pipeline,
                                           const NodeControlBlock& control_block,
                                           PointToPoint* messages) = 0;
  /// Frees communicators. Collective over the ranks of each.
  virtual void disconnect() = 0;
};

/// Versions that this build was compiled with; empty without CUDA.
struct GpuBuild {
  std::string cuda;
  std::string nccl;
};
GpuBuild gpu_build();

/// The GPU of each rank: its place among the ranks of its host, modulo the GPUs that it sees. Null
/// on every rank where this build has no CUDA, HORA_CUDA is off, or any rank sees no GPU.
/// `settings` outlive it. Collective. Throws Error(transport), and Error(invalid_use) for two
/// copies of CUDA's libraries or a GPU shared by ranks of one communicator.
std::unique_ptr<Gpu> make_gpu(Bootstrap& world, const NodeDiscovery& node,
                              const Settings& settings);

struct CudaFunctions;

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

/// Identifies `device` in this process. Throws Error(transport).
GpuIdentity gpu_identity(const CudaFunctions& cuda, int device);

/// As text that is sent to other ranks.
std::string to_lines(const GpuIdentity& gpu);
GpuIdentity gpu_from_lines(const std::string& lines);

/// Why NCCL would refuse the ranks of a node, with what to do; empty where it will not: it compares
/// host and bus id, and refuses two ranks on one GPU, parts of it included. Pure, so all ranks come
/// to the same text.
std::string shared_gpu(const std::vector<GpuIdentity>& by_rank, const Topology& topology);

/// As shared_gpu(), of all ranks in one communicator, whatever their nodes: "ranks 0 and 1 on host
/// h share the GPU ..". Parts (MIG) of one GPU on different nodes are not recognised. Pure.
std::string shared_over_nodes(const std::vector<GpuIdentity>& by_rank);

/// The GPU of each rank, this one's being `device`. Collective. Throws the same Error(invalid_use)
/// on every rank where NCCL would refuse a node's GPUs.
std::vector<GpuIdentity> check_gpus(const CudaFunctions& cuda, Bootstrap& world,
                                    const Topology& topology, int device);

/// The network that NCCL takes on a rank.
struct NcclNetwork {
  std::string name;    ///< empty: sockets
  std::string reason;  ///< the fact that decides: "NCCL_IB_DISABLE=1"
  bool operator==(const NcclNetwork&) const = default;
};

/// NCCL's order: NCCL_NET (Socket and IB are NCCL's own, others a plugin's); NCCL_NET_PLUGIN but
/// for "none"; InfiniBand and RoCE where a port is active and NCCL_IB_DISABLE is 0 or unset;
/// sockets. `active_ports`: "mlx5_0 port 1", in order. Pure.
NcclNetwork network_of(const EnvironmentLookup& lookup,
                       const std::vector<std::string>& active_ports);

struct GpuChoice {
  bool taken = false;
  bool doubtful = false;  ///< forced by a setting, though a library does not report it
  std::string reason;     ///< for the log, a sentence without full stop
};

/// Whether NCCL connects several nodes. `by_rank`: the network of each; `shared`: why NCCL would
/// refuse the ranks' GPUs together, or empty. `automatic`: where every rank has the same network,
/// not sockets, and nothing is shared. Pure, the same on all ranks.
GpuChoice choose_gpu_network(GpuNetwork setting, std::span<const NcclNetwork> by_rank,
                             const std::string& shared);

/// Whether one communicator connects the GPUs of all nodes: the same answer on every rank, logged
/// by rank 0; false in a job of one node. Collective. Throws the same Error(invalid_use) on every
/// rank where HORA_GPU_NETWORK=nccl and NCCL would refuse that.
bool agree_on_gpu_network(Bootstrap& world, const NcclNetwork& own, GpuNetwork setting, int nodes,
                          const std::vector<GpuIdentity>& gpu_by_rank);

/// Whether slices stay in GPU memory. `by_rank`: what each rank's MPI says. The same on all ranks
/// for the same arguments. The setting `on` overrides MPI's own answer, which can be a wrong no.
/// Pure.
GpuChoice choose_device_staging(CudaAwareMpi setting, std::span<const CudaSupport> by_rank,
                                int nodes);

/// Whether slices stay in GPU memory between nodes, where this rank's MPI says `own`: the same
/// answer on every rank, logged by rank 0. Collective.
bool agree_on_device_staging(Bootstrap& world, CudaSupport own, const Settings& settings,
                             int nodes);

}  // namespace hora::internal
