#include "frameworks/torch/tensor_view.h"

#include "core/tensor_text.h"
#include "frameworks/torch/data_type.h"
#include "frameworks/torch/device_stream.h"

namespace hora {

void refuse_tensor(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, tensor_text(name) + ": " + what, -1, name);
}

void check_dense(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse_tensor(name, "is undefined; expected one with memory");
  if (tensor.layout() != torch::kStrided) refuse_tensor(name, "is sparse; expected a dense one");
}

TensorView view_of(const std::string& name, const torch::Tensor& contiguous) {
  const auto type = to_data_type(contiguous.scalar_type());
  if (!type) {
    refuse_tensor(name, std::string("has type ") + torch::toString(contiguous.scalar_type()) +
                            "; expected float16, bfloat16, float32, float64, int8, int16, int32, "
                            "int64, uint8 or bool");
  }
  return {contiguous.data_ptr(), *type, contiguous.sizes().vec(), to_device(contiguous.device()),
          current_stream(contiguous.device())};
}

torch::Tensor in_memory_order(const torch::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

torch::Tensor to_tensor(const Result& result) {
  const auto options = torch::TensorOptions()
                           .dtype(to_scalar_type(result.type()))
                           .device(to_torch(result.view().device));
  if (result.data() == nullptr) return torch::empty(result.shape(), options);
  return torch::from_blob(
      result.data(), result.shape(), [result](void*) {}, options);
}

void note_written(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace hora
