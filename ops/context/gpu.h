/// This rank's GPU and its groups. CMake selects the source: gpu_cuda.cpp or gpu_none.cpp.
#pragma once

#include <hora/settings.h>

#include <memory>
#include <string>

#include "core/control_block/node_control_block.h"
#include "core/engine/interfaces.h"
#include "ops/context/node_discovery.h"
#include "ops/cross/point_to_point.h"
#include "ops/hierarchy/pipeline.h"

namespace hora::internal {

/// Of one process set; null without a GPU.
struct GpuGroups {
  LocalGroup* local = nullptr;
  ExchangeGroup* exchange = nullptr;  ///< null in sets of several nodes, but where it spans them
  /// For slices that stay in GPU memory; null: host memory's cross group, or none.
  CrossGroup* cross = nullptr;
  bool spans_nodes = false;  ///< the groups are of all ranks of the set, whatever their nodes
};

/// A process set, the world among them, on this GPU. Thread rule: the thread that holds the
/// engine's lock.
class GpuSet {
 public:
  virtual ~GpuSet() = default;
  virtual GpuGroups groups() = 0;
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

/// The GPU of each rank: its place among the ranks of its host, modulo the GPUs that it sees (so
/// CUDA_VISIBLE_DEVICES, MIG names included, holds). Null on every rank where this build has no
/// CUDA, HORA_CUDA is off, or any rank sees no GPU. `settings` outlive it. Collective. Throws
/// Error(transport), and Error(invalid_use) where two copies of CUDA's libraries are loaded or
/// ranks of one communicator share a GPU.
std::unique_ptr<Gpu> make_gpu(Bootstrap& world, const NodeDiscovery& node,
                              const Settings& settings);

}  // namespace hora::internal
