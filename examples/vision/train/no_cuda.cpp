// Where hora or LibTorch is built without CUDA: all_gpus() has found none.
#include <stdexcept>

#include "examples/vision/train/precision.h"

namespace vision {

std::optional<double> gpu_peak_bytes(const torch::Device&) {
  return std::nullopt;
}

torch::Tensor data_parallel_logits(const std::shared_ptr<Classifier>&, const Precision&,
                                   const torch::Tensor&) {
  throw std::logic_error("this program was built without CUDA, which data_parallel needs");
}

}  // namespace vision
