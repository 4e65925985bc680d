#include "frameworks/torch/tensor_view.h"

#include <hora/error.h>
#include <torch/version.h>

#include <algorithm>
#include <array>

#include "core/base/text.h"

namespace hora::internal {
namespace {

/// uint16, uint32 and uint64, which LibTorch has from 2.3 on; before it Undefined.
constexpr auto long_unsigned = []<class Scalar>(Scalar none) {
  if constexpr (requires { Scalar::UInt64; }) {
    return std::array{Scalar::UInt16, Scalar::UInt32, Scalar::UInt64};
  } else {
    return std::array{none, none, none};
  }
}(c10::ScalarType::Undefined);

constexpr std::array<std::pair<DataType, c10::ScalarType>, 13> pairs{{
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
    {DataType::uint16, long_unsigned[0]},
    {DataType::uint32, long_unsigned[1]},
    {DataType::uint64, long_unsigned[2]},
}};

}  // namespace

std::optional<DataType> to_data_type(c10::ScalarType type) noexcept {
  for (const auto& [ours, theirs] : pairs) {
    if (theirs == type && theirs != c10::ScalarType::Undefined) return ours;
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
  refuse_argument("a tensor is on ", device, "; hora works on cpu and cuda");
}

c10::Device to_torch(const Device& device) noexcept {
  if (device.kind == DeviceKind::cpu) return c10::Device(c10::kCPU);
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

void refuse_named_tensor(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, tensor_text(name) + ": " + what, -1, name);
}

void check_dense(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse_tensor(name, "is undefined; expected one with memory");
  if (tensor.layout() != torch::kStrided) refuse_tensor(name, "is sparse; expected a dense one");
}

TensorView view_of(const std::string& name, const torch::Tensor& contiguous) {
  const auto type = to_data_type(contiguous.scalar_type());
  if (!type) {
    refuse_tensor(name, "has type ", contiguous.scalar_type(),
                  "; expected float16, bfloat16, float32, float64, int8, int16, ",
                  "int32, int64, uint8, uint16, uint32, uint64 or bool");
  }
  return {contiguous.data_ptr(), *type, contiguous.sizes().vec(), to_device(contiguous.device()),
          current_stream(contiguous.device())};
}

torch::Tensor in_memory_order(const torch::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

torch::Tensor to_tensor(const Result& result) {
  const c10::ScalarType type = to_scalar_type(result.type());
  if (type == c10::ScalarType::Undefined) {
    refuse_argument("LibTorch " TORCH_VERSION " has no tensors of ", name_of(result.type()),
                    ", which are there from 2.3 on; convert the values to a signed type ",
                    "beforehand, or take them from the hora::Result");
  }
  const c10::Device device = to_torch(result.view().device);
  if (result.data() == nullptr) {
    return torch::empty(result.shape(), torch::TensorOptions(type).device(device));
  }
  return tensor_on(result, result.data(), type, device, result.shape());
}

void note_written(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

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
