#include "frameworks/torch/data_type.h"

#include <hora/error.h>

#include <array>
#include <utility>

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

}  // namespace hora
