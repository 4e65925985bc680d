/// Elements in vector registers: how each DataType is loaded, scaled and stored, for the
/// instruction set that the including source is compiled for. All in an unnamed namespace (see
/// kernel_table.h).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hora::internal {
namespace {

// float16 and bfloat16 by integer arithmetic, for one value or a vector: `Int` is int and `Float`
// float, or GCC vectors of these. A 16-bit pattern is held in the low half of an Int.
//
// Round to nearest even; subnormals kept; a NaN stays one (quiet, upper payload bits kept), as the
// F16C instructions do. The CPU's flush-to-zero mode changes nothing.

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

#if defined(__AVX512F__)
constexpr std::size_t kWidth = 64;
#elif defined(__AVX2__)
constexpr std::size_t kWidth = 32;
#else
constexpr std::size_t kWidth = 16;
#endif

/// Vectors anywhere in memory. (A memcpy of 16 bytes would go through two general registers in
/// GCC 12.)
template <class Vector>
struct Unaligned {
  typedef Vector Type __attribute__((aligned(1), may_alias));
};
template <class Vector>
inline Vector load_vector(const void* from) {
  return *static_cast<const typename Unaligned<Vector>::Type*>(from);
}
template <class Vector>
inline void store_vector(void* to, Vector vector) {
  *static_cast<typename Unaligned<Vector>::Type*>(to) = vector;
}

/// Each type E: E::load gives a vector as it is reduced, E::packed makes of it what is stored (to
/// several places: once), store_vector stores that, and E::store both.
///
/// Types that are reduced as they are. Integers are summed and multiplied as unsigned ones, so that
/// they wrap, and compared as what they are.
template <class T, bool kIsScaled>
struct Plain {
  using Stored = T;
  using Scalar = T;
  typedef T Vector __attribute__((vector_size(kWidth)));
  static constexpr std::size_t kLanes = kWidth / sizeof(T);
  static constexpr bool kScaled = kIsScaled;

  static Vector load(const Stored* from) { return load_vector<Vector>(from); }
  static Vector packed(Vector vector) { return vector; }
  static void store(Stored* to, Vector vector) { store_vector(to, vector); }
  static Vector scaled(Vector vector, Scalar scale) {
    if constexpr (kScaled) {
      return vector * scale;
    } else {
      return vector;
    }
  }
};

/// One byte, 0 or 1; any other value read counts as 1.
struct Boolean : Plain<std::uint8_t, false> {
  static Vector load(const Stored* from) { return (Vector)(load_vector<Vector>(from) != 0) & 1; }
};

typedef float Floats __attribute__((vector_size(kWidth)));
typedef std::int32_t Ints __attribute__((vector_size(kWidth)));
typedef std::uint32_t Unsigneds __attribute__((vector_size(kWidth)));
typedef std::uint16_t Halves __attribute__((vector_size(kWidth / 2)));

/// 16 bits to 32 and back (values below 2^16). Intrinsics where GCC 12 splits the vectors.
/// With a full mask: GCC 12 warns about its own header in the forms without one.
inline Unsigneds extend(Halves halves) {
#if defined(__AVX512F__)
  return (Unsigneds)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)halves);
#elif defined(__AVX2__)
  return (Unsigneds)_mm256_cvtepu16_epi32((__m128i)halves);
#else
  return __builtin_convertvector(halves, Unsigneds);
#endif
}
inline Halves truncate(Unsigneds values) {
#if defined(__AVX512F__)
  return (Halves)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)values);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)values, (__m256i)values);
  return (Halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0xd8));
#else
  return __builtin_convertvector(values, Halves);
#endif
}

struct Float16Conversion {
#if defined(__AVX512F__)
  static Floats widen(Halves halves) {
    return _mm512_maskz_cvtph_ps(0xffff, (__m256i)halves);
  }
  static Halves narrow(Floats floats) {
    return (Halves)_mm512_maskz_cvtps_ph(0xffff, floats,
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#elif defined(__F16C__) && defined(__AVX2__)
  static Floats widen(Halves halves) {
    return _mm256_cvtph_ps((__m128i)halves);
  }
  static Halves narrow(Floats floats) {
    return (Halves)_mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
#else
  static Floats widen(Halves halves) {
    return float_from_float16<Ints, Floats>((Ints)extend(halves));
  }
  static Halves narrow(Floats floats) {
    return truncate((Unsigneds)float16_from_float<Ints, Floats>(floats));
  }
#endif
};

struct Bfloat16Conversion {
  static Floats widen(Halves halves) {
    return float_from_bfloat16<Unsigneds, Floats>(extend(halves));
  }
  static Halves narrow(Floats floats) {
#if defined(__AVX512BF16__)
    // The instruction takes subnormals for zero; all else it rounds as bfloat16_from_float() does.
    constexpr int kSubnormal = 0x20;
    if (__builtin_expect(_mm512_fpclass_ps_mask(floats, kSubnormal) == 0, 1)) {
      return (Halves)_mm512_maskz_cvtneps_pbh(0xffff, floats);
    }
#endif
    return truncate(bfloat16_from_float<Unsigneds, Floats>(floats));
  }
};

/// Types of 16 bits, reduced in float32.
template <class Conversion>
struct Half {
  using Stored = std::uint16_t;
  using Scalar = float;
  using Vector = Floats;
  static constexpr std::size_t kLanes = kWidth / sizeof(float);
  static constexpr bool kScaled = true;

  static Vector load(const Stored* from) { return Conversion::widen(load_vector<Halves>(from)); }
  static Halves packed(Vector vector) { return Conversion::narrow(vector); }
  static void store(Stored* to, Vector vector) { store_vector(to, packed(vector)); }
  static Vector scaled(Vector vector, Scalar scale) { return vector * scale; }
};

/// `count` elements, fewer than a vector; the other lanes are zero.
template <class E>
inline typename E::Vector load_partial(const typename E::Stored* from, std::size_t count) {
  typename E::Stored padded[E::kLanes] = {};
  __builtin_memcpy(padded, from, count * sizeof(typename E::Stored));
  return E::load(padded);
}

}  // namespace
}  // namespace hora::internal
