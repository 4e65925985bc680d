#include "frameworks/torch/tensor_view.h"

#include <hora/error.h>

#include <array>
#include <utility>

#include "core/tensor_text.h"

namespace hora {
namespace {

constexpr std::array<std::pair<DataType, c10::ScalarType>, 10> pairs{{
    {DataType::float16, c10::ScalarType::Half},
    {DataType::bfloat16, c10::ScalarType::BFloat16},
    {DataType::float32, c10::ScalarType::Float},
    {DataType::float64, c10::ScalarType::Double},
    {DataType::int32, c10::ScalarType::Int},
    {DataType::int64, c10::ScalarType::Long},
    {DataType::uint8, c10::ScalarType::Byte},
    {DataType::int8, c10::ScalarType::Char},
    {DataType::int16, c10::ScalarType::Short},
    {DataType::boolean, c10::ScalarType::Bool},
}};

}  // namespace

std::optional<DataType> to_data_type(c10::ScalarType type) noexcept {
  for (const auto& [ours, theirs] : pairs) {
    if (theirs == type) return ours;
  }
  return std::nullopt;
}

c10::ScalarType to_scalar_type(DataType type) noexcept {
  for (const auto& [ours, theirs] : pairs) {
    if (ours == type) return theirs;
  }
  return c10::ScalarType::Undefined;
}

Device to_device(const c10::Device& device) {
  if (device.is_cpu()) return {};
  if (device.is_cuda()) return {DeviceKind::cuda, device.index()};
  throw Error(ErrorCode::invalid_argument,
              "a tensor is on " + device.str() + "; hora works on cpu and cuda");
}

c10::Device to_torch(const Device& device) noexcept {
  if (device.kind == DeviceKind::cpu) return c10::Device(c10::kCPU);
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

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
