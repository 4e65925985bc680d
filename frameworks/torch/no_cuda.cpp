/// Takes the place of cuda/ where hora or LibTorch is built without CUDA.
#include <hora/error.h>

#include "frameworks/torch/optim/optim.h"
#include "frameworks/torch/optimizer/bucket.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {

void* current_stream(const at::Device&) {
  return nullptr;
}

void share_device_memory(const Context&) {}

void keep_for_stream(const at::Tensor&, void*) {}

std::unique_ptr<DeviceUpdates> make_device_updates(const at::Device&) {
  return nullptr;
}

std::unique_ptr<GradientBucket> make_cuda_bucket(const Context&, const BucketLayout&,
                                                 const std::vector<Parameter>&) {
  throw Error(ErrorCode::invalid_argument,
              "this build of hora::torch averages gradients on the CPU only");
}

}  // namespace hora::internal
