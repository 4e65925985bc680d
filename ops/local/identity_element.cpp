#include "ops/local/identity_element.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace hora {
namespace {

template <class T>
void fill(std::byte* out, std::size_t count, T value) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * sizeof(T), &value, sizeof(T));
}

bool is_sum(ReduceOp op) {
  return op != ReduceOp::product && op != ReduceOp::min && op != ReduceOp::max;
}

template <class T>
void fill(std::byte* out, std::size_t count, ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  if (is_sum(op)) return fill<T>(out, count, Limits::is_iec559 ? static_cast<T>(-0.0) : T{0});
  const T largest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const T smallest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  fill<T>(out, count, op == ReduceOp::product ? T{1} : op == ReduceOp::min ? largest : smallest);
}

/// Bit patterns of a 16-bit type, IEEE 754 binary16 or bfloat16.
void fill_half(std::byte* out, std::size_t count, ReduceOp op, std::uint16_t one,
               std::uint16_t infinity) {
  constexpr std::uint16_t kSign = 0x8000;
  const auto negative = static_cast<std::uint16_t>(infinity | kSign);
  fill<std::uint16_t>(out, count,
                      is_sum(op)                ? kSign
                      : op == ReduceOp::product ? one
                      : op == ReduceOp::min     ? infinity
                                                : negative);
}

}  // namespace

void fill_identity(DataType type, ReduceOp op, std::byte* out, std::size_t count) {
  switch (type) {
    case DataType::float16:
      return fill_half(out, count, op, 0x3c00, 0x7c00);
    case DataType::bfloat16:
      return fill_half(out, count, op, 0x3f80, 0x7f80);
    case DataType::float32:
      return fill<float>(out, count, op);
    case DataType::float64:
      return fill<double>(out, count, op);
    case DataType::int32:
      return fill<std::int32_t>(out, count, op);
    case DataType::int64:
      return fill<std::int64_t>(out, count, op);
    case DataType::uint8:
      return fill<std::uint8_t>(out, count, op);
    case DataType::int8:
      return fill<std::int8_t>(out, count, op);
    case DataType::int16:
      return fill<std::int16_t>(out, count, op);
    case DataType::boolean:
      return fill<bool>(out, count, op);
    case DataType::uint16:
      return fill<std::uint16_t>(out, count, op);
    case DataType::uint32:
      return fill<std::uint32_t>(out, count, op);
    case DataType::uint64:
      return fill<std::uint64_t>(out, count, op);
  }
}

}  // namespace hora
