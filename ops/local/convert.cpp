#include <hora/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// Bytes written, from which on it pays to write past the caches (see kernels.cpp).
constexpr std::size_t kStreamBytes = std::size_t{128} << 10;

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
  if (source == DataType::float16) return convert_each<Float16, Double>(out, in, count, conversion);
  if (source == DataType::bfloat16) {
    return convert_each<Bfloat16, Double>(out, in, count, conversion);
  }
  if (source == DataType::float32) {
    return convert_each<Direct<float>, Double>(out, in, count, conversion);
  }
  if (target == DataType::float16) return convert_each<Double, Float16>(out, in, count, conversion);
  if (target == DataType::bfloat16) {
    return convert_each<Double, Bfloat16>(out, in, count, conversion);
  }
  return convert_each<Double, Direct<float>>(out, in, count, conversion);
}

}  // namespace

bool convert(DataType source, const std::byte* in, DataType target, std::byte* out,
             std::size_t count, const Conversion& conversion) {
  if (!is_floating_point(source) || !is_floating_point(target)) {
    throw Error(ErrorCode::invalid_argument, "hora::convert takes floating-point types; got " +
                                                 std::string(name_of(source)) + " and " +
                                                 std::string(name_of(target)));
  }
  const bool wide = source == DataType::float64 || target == DataType::float64;
  const double most = wide ? std::numeric_limits<double>::max()
                           : static_cast<double>(std::numeric_limits<float>::max());
  const Conversion checked{conversion.scale, std::min(conversion.limit, most)};
  const auto kernel =
      runnable_kernels()[0]
          ->convert[static_cast<std::size_t>(source)][static_cast<std::size_t>(target)];
  if (kernel == nullptr) return convert_float64(source, in, target, out, count, checked);
  const bool past_caches = count * size_of(target) >= kStreamBytes && out != in &&
                           reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  return kernel(out, in, count, checked.scale, checked.limit, past_caches);
}

}  // namespace hora::internal
