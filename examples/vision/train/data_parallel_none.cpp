// Where hora or LibTorch is built without CUDA: all_gpus() has found none.
#include <stdexcept>

#include "examples/vision/train/data_parallel.h"

namespace vision {

torch::Tensor DataParallel::logits(const torch::Tensor&) {
  throw std::logic_error("this program was built without CUDA, which data_parallel needs");
}

}  // namespace vision
