// Functions that need LibTorch's CUDA build: data_parallel scatters and gathers by it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/nn/parallel/data_parallel.h>

#include "examples/vision/train/precision.h"

namespace vision {

std::optional<double> gpu_peak_bytes(const torch::Device& device) {
  if (!device.is_cuda()) return std::nullopt;
  constexpr std::size_t all_pools = 0;  // StatType::AGGREGATE, whose scope changes with versions
  const auto statistics = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return static_cast<double>(statistics.allocated_bytes[all_pools].peak);
}

torch::Tensor data_parallel_logits(const std::shared_ptr<Classifier>& model,
                                   const Precision& precision, const torch::Tensor& images) {
  const auto replicated = std::make_shared<ReplicatedModel>(model, precision);
  const torch::Tensor logits = torch::nn::parallel::data_parallel(replicated, images, all_gpus());
  replicated->keep_statistics();
  return logits;
}

}  // namespace vision
