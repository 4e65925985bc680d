#include <c10/cuda/CUDACachingAllocator.h>

#include "examples/vision/train/gpu_memory.h"

namespace vision {

std::optional<double> gpu_peak_bytes(const c10::Device& device) {
  if (!device.is_cuda()) return std::nullopt;
  constexpr std::size_t all_pools = 0;  // StatType::AGGREGATE, whose scope changes with versions
  const auto statistics = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return static_cast<double>(statistics.allocated_bytes[all_pools].peak);
}

}  // namespace vision
