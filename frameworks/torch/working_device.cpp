#include "frameworks/torch/working_device.h"

#include <algorithm>

#include "frameworks/torch/tensor_view.h"

namespace hora::internal {

at::Device working_device(const Context& context, const at::Device& device) {
  if (device.is_cpu() || device.is_meta()) return device;
  const at::Device own = to_torch(context.device());
  return device.is_cuda() && own.is_cpu() ? device : own;
}

at::Device working_device(const Context& context, at::TensorList tensors) {
  if (tensors.empty()) return at::kCPU;
  const at::Device first = working_device(context, tensors.front().device());
  const bool same = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return working_device(context, tensor.device()) == first;
  });
  return same ? first : to_torch(context.device());
}

}  // namespace hora::internal
