#include "ops/context/gpu.h"

namespace hora {

GpuBuild gpu_build() {
  return {};
}

std::unique_ptr<Gpu> make_gpu(const Communicator&, const NodeDiscovery&, const PipelineOptions&,
                              const NodeControlBlock&, const Settings&, PointToPoint*) {
  return nullptr;
}

}  // namespace hora
