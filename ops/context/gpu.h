/// This rank's GPU, put together. CMake selects the source: gpu_cuda.cpp or gpu_none.cpp.
#pragma once

#include <hora/settings.h>

#include <memory>

#include "core/engine/device.h"
#include "ops/context/node_discovery.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/mpi/communicator.h"
#include "ops/mpi/point_to_point.h"

namespace hora {

struct GpuGroups {
  LocalGroup* local = nullptr;
  ExchangeGroup* exchange = nullptr;  ///< null in jobs of several nodes
  /// Where the local group's slices stay in GPU memory; null: host memory's cross group, or none.
  CrossGroup* cross = nullptr;
};

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual int index() const = 0;
  virtual DevicePort& port() = 0;
  virtual DeviceHeap& heap() = 0;
  virtual GpuGroups groups() = 0;
  /// Lets go of communicators. Collective over the node.
  virtual void disconnect() = 0;
};

/// The GPU of each rank: its place among the ranks of its host, modulo the GPUs that it sees (so
/// CUDA_VISIBLE_DEVICES, MIG names included, holds). Null on every rank where this build has no
/// CUDA, HORA_CUDA is off, or any rank sees no GPU. `messages`: of the rank's cross group, null
/// where it has none. Collective. Throws Error(transport), and Error(invalid_use) where two copies
/// of CUDA's libraries are loaded or ranks of a node share a GPU.
std::unique_ptr<Gpu> make_gpu(const Communicator& world, const NodeDiscovery& node,
                              const PipelineOptions& pipeline, const Settings& settings,
                              PointToPoint* messages);

}  // namespace hora
