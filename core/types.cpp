#include <hora/error.h>
#include <hora/types.h>

#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include "core/base/checked.h"

namespace hora {
using namespace internal;
namespace {

std::string text(std::span<const std::int64_t> shape) {
  std::string result = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    result.append(i == 0 ? "" : ", ").append(std::to_string(shape[i]));
  }
  return result + "]";
}

}  // namespace

// The values below may have come from another rank, so none of the switches relies on its type
// alone.
std::size_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::uint8:
    case DataType::int8:
    case DataType::boolean:
      return 1;
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::int16:
    case DataType::uint16:
      return 2;
    case DataType::float32:
    case DataType::int32:
    case DataType::uint32:
      return 4;
    case DataType::float64:
    case DataType::int64:
    case DataType::uint64:
      return 8;
  }
  return 0;
}

std::string_view name_of(DataType type) noexcept {
  switch (type) {
    case DataType::float16:
      return "float16";
    case DataType::bfloat16:
      return "bfloat16";
    case DataType::float32:
      return "float32";
    case DataType::float64:
      return "float64";
    case DataType::int32:
      return "int32";
    case DataType::int64:
      return "int64";
    case DataType::uint8:
      return "uint8";
    case DataType::int8:
      return "int8";
    case DataType::int16:
      return "int16";
    case DataType::boolean:
      return "bool";
    case DataType::uint16:
      return "uint16";
    case DataType::uint32:
      return "uint32";
    case DataType::uint64:
      return "uint64";
  }
  return "unknown type";
}

bool is_floating_point(DataType type) noexcept {
  switch (type) {
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::float32:
    case DataType::float64:
      return true;
    case DataType::int32:
    case DataType::int64:
    case DataType::uint8:
    case DataType::int8:
    case DataType::int16:
    case DataType::boolean:
    case DataType::uint16:
    case DataType::uint32:
    case DataType::uint64:
      return false;
  }
  return false;
}

std::string_view name_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::average:
      return "average";
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "product";
    case ReduceOp::adasum:
      return "adasum";
  }
  return "unknown operation";
}

std::string_view name_of(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda";
  }
  return "unknown device";
}

std::string to_string(ProcessSet set) {
  return std::to_string(set.number());
}
std::ostream& operator<<(std::ostream& stream, ProcessSet set) {
  return stream << set.number();
}

namespace internal {

std::int64_t elements_of(DataType type, std::span<const std::int64_t> shape) {
  const std::size_t size = size_of(type);
  if (size == 0) {
    throw Error(ErrorCode::invalid_argument, "the data type number " +
                                                 std::to_string(static_cast<int>(type)) +
                                                 " is none of hora's (see hora::DataType)");
  }
  bool empty = false;
  Checked bytes = size;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      throw Error(ErrorCode::invalid_argument,
                  "the shape " + text(shape) + " has the negative extent " +
                      std::to_string(extent) + "; every extent must be 0 or more");
    }
    empty = empty || extent == 0;
    // Rows must be countable also where there are none.
    if (extent > 0) bytes = bytes * extent;
  }
  if (!bytes.at_most(kMaxBytes)) {
    throw Error(ErrorCode::invalid_argument,
                "the shape " + text(shape) + " of " + std::string(name_of(type)) +
                    " has more than 2^48 bytes, extents of 0 left out, which no process can "
                    "address");
  }
  return empty ? 0 : static_cast<std::int64_t>(bytes.value() / size);
}

}  // namespace internal

std::int64_t ConstTensorView::elements() const {
  return internal::elements_of(type, shape);
}
std::size_t ConstTensorView::bytes() const {
  return static_cast<std::size_t>(elements()) * size_of(type);
}
std::int64_t TensorView::elements() const {
  return internal::elements_of(type, shape);
}
std::size_t TensorView::bytes() const {
  return static_cast<std::size_t>(elements()) * size_of(type);
}

}  // namespace hora
