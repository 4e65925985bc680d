/// float16 and bfloat16 by integer arithmetic, for one value or for a vector of them: `Int` is int
/// and `Float` float, or GCC vectors of these. A 16-bit pattern is held in the low half of an Int.
///
/// Round to nearest even; subnormals kept; a NaN stays a NaN (made quiet, upper payload bits kept),
/// as the F16C instructions do. No step meets a float32 subnormal that matters, so that the CPU's
/// flush-to-zero mode changes nothing.
///
/// In an unnamed namespace, since sources with different instruction-set flags include it.
#pragma once

namespace hora::internal {
namespace {

template <class Int, class Float>
inline Float float_from_float16(Int half) {
  const Int sign = (half & 0x8000) << 16;
  const Int magnitude = (half & 0x7fff) << 13;  // exponent and mantissa at float32's places
  // Biases differ by 112; infinity and NaN move from exponent 31 to 255, and NaN becomes quiet.
  const Int normal = magnitude + (112 << 23);
  const Int special = magnitude + (224 << 23);
  const Int quiet = special | (1 << 22);
  // Subnormal m * 2^-24 as (1 + m * 2^-10) * 2^-14 - 2^-14, which is exact.
  const Int shifted = magnitude + (113 << 23);
  const Float difference = __builtin_bit_cast(Float, shifted) - 0x1p-14f;
  const Int subnormal = __builtin_bit_cast(Int, difference);
  const Int finite = magnitude < (1 << 23) ? subnormal : normal;
  const Int not_finite = magnitude > (31 << 23) ? quiet : special;
  const Int bits = sign | (magnitude < (31 << 23) ? finite : not_finite);
  return __builtin_bit_cast(Float, bits);
}

template <class Int, class Float>
inline Int float16_from_float(Float value) {
  const Int bits = __builtin_bit_cast(Int, value);
  const Int sign = (bits >> 16) & 0x8000;
  const Int magnitude = bits & 0x7fffffff;
  // Rounds by adding just under half of the last place kept; a carry into the exponent is right, up
  // to infinity for 65520 and above.
  const Int normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14: 0.5 has its last place at 2^-24, so this addition rounds there.
  const Float sum = __builtin_bit_cast(Float, magnitude) + 0.5f;
  const Int subnormal = __builtin_bit_cast(Int, sum) - 0x3f000000;
  const Int finite = magnitude < (113 << 23) ? subnormal : normal;
  const Int nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const Int not_finite = magnitude > 0x7f800000 ? nan : (nan & 0) + 0x7c00;
  return sign | (magnitude < (143 << 23) ? finite : not_finite);
}

template <class Unsigned, class Float>
inline Float float_from_bfloat16(Unsigned bfloat) {
  const Unsigned bits = bfloat << 16;
  return __builtin_bit_cast(Float, bits);
}

template <class Unsigned, class Float>
inline Unsigned bfloat16_from_float(Float value) {
  const Unsigned bits = __builtin_bit_cast(Unsigned, value);
  const Unsigned upper = bits >> 16;
  // Half of the last place kept, or just under it where that place is even.
  const Unsigned rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;
  return value != value ? upper | 0x40u : rounded;
}

}  // namespace
}  // namespace hora::internal
