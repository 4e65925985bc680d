#include "ops/context/gpu.h"

namespace hora::internal {

GpuBuild gpu_build() {
  return {};
}

std::unique_ptr<Gpu> make_gpu(Bootstrap&, const NodeDiscovery&, const Settings&) {
  return nullptr;
}

}  // namespace hora::internal
