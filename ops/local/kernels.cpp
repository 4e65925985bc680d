#include "ops/local/kernels.h"

#include <fmt/format.h>
#include <hora/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "ops/local/element.h"

namespace hora::internal {
namespace {

/// Below it a copy by non-temporal stores gains less than a tenth (docs/performance.md), and its
/// result may still be in the cache when it is read.
constexpr std::size_t kStreamBytes = std::size_t{128} << 10;
constexpr std::size_t kPublishedBytes = std::size_t{32} << 10;

/// copy_to_all() reads the input from memory once and from the first-level cache after that.
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
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("hora::reduce needs at least one input (got {}) of a known data type (got number "
                  "{}) and sum, average, min, max or product (got {}, number {})",
                  inputs, static_cast<int>(type), name_of(op), static_cast<int>(op)));
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
template <std::uint16_t kOne, std::uint16_t kInfinity>
void fill_half(std::byte* out, std::size_t count, ReduceOp op) {
  constexpr std::uint16_t kSign = 0x8000;
  fill<std::uint16_t>(out, count,
                      adds(op)                  ? kSign
                      : op == ReduceOp::product ? kOne
                      : op == ReduceOp::min     ? kInfinity
                                                : kInfinity | kSign);
}

/// Ratio of |a|^2 to |b|^2.
constexpr double kNegligible = 0x1p-200;

/// The type's number. `what` names the call.
std::size_t floating_number_of(DataType type, std::string_view what) {
  if (is_floating_point(type)) return static_cast<std::size_t>(type);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("hora::{} takes floating-point types; got {}", what, name_of(type)));
}

/// Rounded to odd, after which rounding once more, to a type with at least two bits less, gives
/// what rounding `value` at once would (Boldo and Melquiond, "Emulation of FMA and correctly
/// rounded sums", section 3).
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  const bool too_far = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  const float truncated = too_far ? std::nextafter(nearest, 0.0F) : nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(truncated) | 1U);
}

struct Float16 {
  using Stored = std::uint16_t;
  static double widen(Stored bits) { return static_cast<double>(from_float16(bits)); }
  static Stored narrow(double value) { return to_float16(round_to_odd(value)); }
};
struct Bfloat16 {
  using Stored = std::uint16_t;
  static double widen(Stored bits) { return static_cast<double>(from_bfloat16(bits)); }
  static Stored narrow(double value) { return to_bfloat16(round_to_odd(value)); }
};
template <class T>
struct Direct {
  using Stored = T;
  static double widen(T value) { return static_cast<double>(value); }
  static T narrow(double value) { return static_cast<T>(value); }
};

template <class Source, class Target>
bool convert_each(std::byte* out, const std::byte* in, std::size_t count,
                  const Conversion& conversion) {
  auto* const to = reinterpret_cast<typename Target::Stored*>(out);
  const auto* const from = reinterpret_cast<const typename Source::Stored*>(in);
  bool within = true;
  for (std::size_t i = 0; i < count; ++i) {
    const double product = Source::widen(from[i]) * conversion.scale;
    within &= std::fabs(product) <= conversion.limit;
    to[i] = Target::narrow(product);
  }
  return within;
}

/// One of the types is float64, and not the other.
bool convert_float64(DataType source, const std::byte* in, DataType target, std::byte* out,
                     std::size_t count, const Conversion& conversion) {
  using Double = Direct<double>;
  using Convert = bool(std::byte*, const std::byte*, std::size_t, const Conversion&);
  // By the number of the other type.
  constexpr Convert* kWiden[] = {convert_each<Float16, Double>, convert_each<Bfloat16, Double>,
                                 convert_each<Direct<float>, Double>};
  constexpr Convert* kNarrow[] = {convert_each<Double, Float16>, convert_each<Double, Bfloat16>,
                                  convert_each<Double, Direct<float>>};
  const bool widens = target == DataType::float64;
  return (widens ? kWiden : kNarrow)[static_cast<std::size_t>(widens ? source : target)](
      out, in, count, conversion);
}

std::size_t update_number_of(DataType type) {
  if (type == DataType::float32) return 0;
  if (type == DataType::float64) return 1;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("hora::update takes float32 and float64; got {}", name_of(type)));
}

/// Shorter runs leave the copies in a cache, from which the others read them.
constexpr std::size_t kUpdateStreamBytes = std::size_t{32} << 10;

template <class Step, class Kernel>
void run_update(const Kernel (&kernels)[2], DataType type, const Step& step,
                const UpdateMemory& memory, std::size_t begin, std::size_t end) {
  const Kernel kernel = kernels[update_number_of(type)];
  if (memory.gradients.empty()) {
    throw Error(ErrorCode::invalid_argument, "hora::update needs at least one gradient; got none");
  }
  if (begin == end) return;
  UpdateArrays arrays{.parameter = memory.parameter,
                      .gradients = memory.gradients.data(),
                      .gradient_count = memory.gradients.size(),
                      .scales = memory.scales,
                      .copies = memory.copies.data(),
                      .copy_count = memory.copies.size(),
                      .streams = (end - begin) * size_of(type) >= kUpdateStreamBytes};
  std::copy(std::begin(memory.state), std::end(memory.state), arrays.state);
  kernel(step, arrays, begin, end);
}

}  // namespace

const KernelTable* const* runnable_kernels() noexcept {
  static const struct Runnable {
    const KernelTable* tables[5] = {};
    Runnable() noexcept {
      std::size_t count = 0;
#ifdef HORA_LOCAL_X86
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("fma")) {
        if (__builtin_cpu_supports("avx512bf16")) tables[count++] = &kAvx512Bf16Kernels;
        tables[count++] = &kAvx512Kernels;
      }
      // All processors with AVX2 have F16C, a name that Clang 14 does not know.
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
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
  // In the order of DataType.
  constexpr void (*kFills[kDataTypes])(std::byte*, std::size_t, ReduceOp) = {
      fill_half<0x3c00, 0x7c00>,
      fill_half<0x3f80, 0x7f80>,
      fill<float>,
      fill<double>,
      fill<std::int32_t>,
      fill<std::int64_t>,
      fill<std::uint8_t>,
      fill<std::int8_t>,
      fill<std::int16_t>,
      fill<bool>,
      fill<std::uint16_t>,
      fill<std::uint32_t>,
      fill<std::uint64_t>};
  kFills[static_cast<std::size_t>(type)](out, count, op);
}

double sum_of_squares(DataType type, const std::byte* values, std::size_t count) {
  return kernels().sum_of_squares[floating_number_of(type, "sum_of_squares")](values, count);
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

AdasumDots adasum_dots(DataType type, const std::byte* a, const std::byte* b, std::size_t count) {
  return kernels().adasum[floating_number_of(type, "adasum_dots")].dots(a, b, count);
}

AdasumFactors adasum_factors(const AdasumDots& dots) noexcept {
  if (dots.norm_a <= kNegligible * dots.norm_b || dots.norm_b <= kNegligible * dots.norm_a) {
    return {1, 1};
  }
  return {1 - dots.dot / dots.norm_a / 2, 1 - dots.dot / dots.norm_b / 2};
}

void adasum_combine(DataType type, const std::byte* a, const std::byte* b, AdasumFactors factors,
                    std::byte* out, std::size_t count) {
  kernels().adasum[floating_number_of(type, "adasum_combine")].combine(a, b, factors, out, count);
}

bool convert(DataType source, const std::byte* in, DataType target, std::byte* out,
             std::size_t count, const Conversion& conversion) {
  const std::size_t from = floating_number_of(source, "convert");
  const std::size_t to = floating_number_of(target, "convert");
  const bool wide = source == DataType::float64 || target == DataType::float64;
  const double most = wide ? std::numeric_limits<double>::max()
                           : static_cast<double>(std::numeric_limits<float>::max());
  const Conversion checked{conversion.scale, std::min(conversion.limit, most)};
  const auto kernel = kernels().convert[from][to];
  if (kernel == nullptr) return convert_float64(source, in, target, out, count, checked);
  const bool past_caches = count * size_of(target) >= kStreamBytes && out != in &&
                           reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  return kernel(out, in, count, checked.scale, checked.limit, past_caches);
}

void update(DataType type, const SgdStep& step, const UpdateMemory& memory, std::size_t begin,
            std::size_t end) {
  run_update(kernels().sgd, type, step, memory, begin, end);
}

void update(DataType type, const AdamStep& step, const UpdateMemory& memory, std::size_t begin,
            std::size_t end) {
  run_update(kernels().adam, type, step, memory, begin, end);
}

}  // namespace hora::internal
