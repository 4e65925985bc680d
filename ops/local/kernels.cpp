#include "ops/local/kernels.h"

#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "ops/local/half.h"
#include "ops/local/kernel_table.h"

namespace hora::internal {
namespace {

/// Below it a copy by non-temporal stores gains less than a tenth (docs/performance.md), and its
/// result may still be in the cache when it is read.
constexpr std::size_t kStreamBytes = std::size_t{128} << 10;
constexpr std::size_t kPublishedBytes = std::size_t{32} << 10;

/// Of copy_to_all(): the input is read from memory once and from the first-level cache after that.
constexpr std::size_t kCopyBlock = std::size_t{16} << 10;

const KernelTable& kernels() noexcept {
  static const KernelTable& best = *runnable_kernels()[0];
  return best;
}

void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes, std::size_t from) {
  if (bytes == 0) return;
  if (bytes < from) {
    std::memcpy(out, in, bytes);
  } else {
    kernels().stream_copy(out, in, bytes);
  }
}

void check_reduction(DataType type, ReduceOp op, std::size_t inputs) {
  if (inputs > 0 && static_cast<std::size_t>(type) < kDataTypes &&
      static_cast<std::size_t>(op) < kReduceOps) {
    return;
  }
  throw Error(ErrorCode::invalid_argument,
              "hora::reduce needs at least one input (got " + std::to_string(inputs) +
                  ") of a known data type (got number " + std::to_string(static_cast<int>(type)) +
                  ") and sum, average, min, max or product (got " + std::string(name_of(op)) +
                  ", number " + std::to_string(static_cast<int>(op)) + ")");
}

template <class T>
void fill(std::byte* out, std::size_t count, T value) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * sizeof(T), &value, sizeof(T));
}

bool adds(ReduceOp op) {
  return op != ReduceOp::product && op != ReduceOp::min && op != ReduceOp::max;
}

template <class T>
void fill(std::byte* out, std::size_t count, ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  if (adds(op)) return fill<T>(out, count, Limits::is_iec559 ? static_cast<T>(-0.0) : T{0});
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
                      adds(op)                  ? kSign
                      : op == ReduceOp::product ? one
                      : op == ReduceOp::min     ? infinity
                                                : negative);
}

}  // namespace

const KernelTable* const* runnable_kernels() noexcept {
  static const struct Runnable {
    const KernelTable* tables[5] = {};
    Runnable() noexcept {
      std::size_t count = 0;
#ifdef HORA_LOCAL_X86
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        if (__builtin_cpu_supports("avx512bf16")) tables[count++] = &kAvx512Bf16Kernels;
        tables[count++] = &kAvx512Kernels;
      }
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
        tables[count++] = &kAvx2Kernels;
      }
#endif
      tables[count] = &kBaselineKernels;
    }
  } runnable;
  return runnable.tables;
}

void reduce(DataType type, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count, Scales scales) {
  check_reduction(type, op, inputs.size());
  if (count == 0) return;
  const bool is_floating = is_floating_point(type);
  const bool prescaled = is_floating && scales.pre != 1.0;
  const bool scaled = prescaled || (is_floating && scales.post != 1.0);
  // A boolean's copy would keep a byte other than 0 and 1.
  if (inputs.size() == 1 && !scaled && type != DataType::boolean) {
    return copy_to_all(inputs[0], outputs, count * size_of(type));
  }
  const ReduceKernels& of_type = kernels().reduce[static_cast<std::size_t>(type)];
  const bool is_sum = op == ReduceOp::sum || op == ReduceOp::average;
  const ReduceKernel kernel =
      is_sum && !prescaled ? of_type.plain_sum : of_type.by_op[static_cast<std::size_t>(op)];
  kernel(inputs.data(), inputs.size(), outputs.data(), outputs.size(), count, scales);
}

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

double sum_of_squares(DataType type, const std::byte* values, std::size_t count) {
  if (!is_floating_point(type)) {
    throw Error(
        ErrorCode::invalid_argument,
        "hora::sum_of_squares takes floating-point types; got " + std::string(name_of(type)));
  }
  return kernels().sum_of_squares[static_cast<std::size_t>(type)](values, count);
}

void copy_to_all(const std::byte* input, std::span<std::byte* const> outputs, std::size_t bytes) {
  for (std::size_t begin = 0; begin < bytes; begin += kCopyBlock) {
    const std::size_t block = std::min(kCopyBlock, bytes - begin);
    for (std::byte* const output : outputs) {
      if (output != input) std::memcpy(output + begin, input + begin, block);
    }
  }
}

void stream_copy(std::byte* out, const std::byte* in, std::size_t bytes) {
  copy_past_caches(out, in, bytes, kStreamBytes);
}

void publish_copy(std::byte* out, const std::byte* in, std::size_t bytes) {
  copy_past_caches(out, in, bytes, kPublishedBytes);
}

const char* kernel_instruction_set() noexcept {
  return kernels().instruction_set;
}

std::uint16_t to_float16(float value) noexcept {
  return static_cast<std::uint16_t>(float16_from_float<std::int32_t, float>(value));
}
float from_float16(std::uint16_t bits) noexcept {
  return float_from_float16<std::int32_t, float>(bits);
}
std::uint16_t to_bfloat16(float value) noexcept {
  return static_cast<std::uint16_t>(bfloat16_from_float<std::uint32_t, float>(value));
}
float from_bfloat16(std::uint16_t bits) noexcept {
  return float_from_bfloat16<std::uint32_t, float>(bits);
}

}  // namespace hora::internal
