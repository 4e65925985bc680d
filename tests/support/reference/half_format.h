/// Slow conversions between float16/bfloat16 and numbers, by arithmetic on doubles instead of bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace hora::internal::test {

/// A binary format: `mantissa_bits` without the leading one, exponents of normal numbers from
/// `least_exponent` to `-least_exponent + 1`.
struct HalfFormat {
  int mantissa_bits;
  int least_exponent;
};
inline constexpr HalfFormat kFloat16{10, -14};
inline constexpr HalfFormat kBfloat16{7, -126};

inline double decode(HalfFormat format, std::uint16_t bits) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x7fff >> format.mantissa_bits) {
    return sign * (mantissa == 0 ? std::numeric_limits<double>::infinity()
                                 : std::numeric_limits<double>::quiet_NaN());
  }
  const int leading = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int power = (exponent == 0 ? 1 : exponent) - 1 + format.least_exponent;
  return sign * std::ldexp(mantissa + leading, power - format.mantissa_bits);
}

/// The nearest value of the format, of two equally near ones the even one. A NaN gives some quiet
/// NaN.
inline std::uint16_t encode(HalfFormat format, double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(value);
  const int infinity = 0x7fff >> format.mantissa_bits << format.mantissa_bits;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | infinity | 1 << (format.mantissa_bits - 1));
  }
  if (magnitude == 0) return sign;
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const int power = std::max(std::ilogb(magnitude), format.least_exponent);
  // Exact: a power of two times a float32 fits a double.
  const auto mantissa =
      static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - power)));
  // A subnormal has no leading one, so its exponent field comes out as 0; a mantissa rounded up to
  // the next power of two carries into the exponent, the largest finite one into infinity.
  const int bits = ((power - format.least_exponent) << format.mantissa_bits) + mantissa;
  return static_cast<std::uint16_t>(sign | std::min(bits, infinity));
}

inline bool is_nan(HalfFormat format, std::uint16_t bits) {
  return (bits & 0x7fff) > 0x7fff >> format.mantissa_bits << format.mantissa_bits;
}

}  // namespace hora::internal::test
