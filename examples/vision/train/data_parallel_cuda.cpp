// With LibTorch's CUDA build, which alone has what data_parallel scatters and gathers by.
#include <torch/nn/parallel/data_parallel.h>

#include "examples/vision/train/data_parallel.h"

namespace vision {

torch::Tensor DataParallel::logits(const torch::Tensor& images) {
  model_->begin_step();
  const torch::Tensor logits = torch::nn::parallel::data_parallel(model_, images, devices_);
  model_->end_step();
  return logits;
}

}  // namespace vision
