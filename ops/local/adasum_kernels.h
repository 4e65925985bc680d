/// The loops of Adasum (adasum.h) and of hora::sum_of_squares. All in an unnamed namespace (see
/// kernel_table.h).
#pragma once

#include "ops/local/element.h"
#include "ops/local/kernel_table.h"
#include "ops/local/kernel_values.h"

namespace hora::internal {
namespace {

typedef double Doubles __attribute__((vector_size(kWidth)));
/// The first and the last half of the elements. Intrinsics where GCC 12 splits the vectors; with a
/// full mask, see extend().
inline Doubles first_doubles(Floats floats) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, floats, 0));
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(_mm256_castps256_ps128(floats));
#else
  return __builtin_convertvector(__builtin_shufflevector(floats, floats, 0, 1), Doubles);
#endif
}
inline Doubles last_doubles(Floats floats) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, floats, 1));
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(_mm256_extractf128_ps(floats, 1));
#else
  return __builtin_convertvector(__builtin_shufflevector(floats, floats, 2, 3), Doubles);
#endif
}

/// One vector of elements as vectors of doubles, which is exact.
struct DoublesOfFloats {
  explicit DoublesOfFloats(Floats floats) : part{first_doubles(floats), last_doubles(floats)} {}
  static constexpr std::size_t kParts = 2;
  Doubles part[kParts];
};
struct DoublesOfDoubles {
  explicit DoublesOfDoubles(Doubles doubles) : part{doubles} {}
  static constexpr std::size_t kParts = 1;
  Doubles part[kParts];
};
inline DoublesOfFloats widened(Floats floats) {
  return DoublesOfFloats(floats);
}
inline DoublesOfDoubles widened(Doubles doubles) {
  return DoublesOfDoubles(doubles);
}

/// Element i is added up in lane i modulo kDotLanes, whatever the width of the registers; in the
/// end the lanes are summed pairwise. So the bits depend on where a piece begins and ends alone.
constexpr std::size_t kDotLanes = 16;
constexpr std::size_t kDotVectors = kDotLanes * sizeof(double) / kWidth;

inline double sum_of_lanes(const Doubles* vectors) {
  double lanes[kDotLanes];
  __builtin_memcpy(lanes, vectors, sizeof lanes);
  for (std::size_t count = kDotLanes / 2; count > 0; count /= 2) {
    for (std::size_t lane = 0; lane < count; ++lane) lanes[lane] += lanes[lane + count];
  }
  return lanes[0];
}

/// Of kDotLanes elements.
template <class E>
inline void add_squares(const typename E::Stored* values, Doubles* squares) {
  std::size_t vector = 0;
  for (std::size_t first = 0; first < kDotLanes; first += E::kLanes) {
    const auto wide = widened(E::load(values + first));
    for (std::size_t p = 0; p < wide.kParts; ++p, ++vector) {
      squares[vector] += wide.part[p] * wide.part[p];
    }
  }
}

template <class E>
double sum_of_squares_of(const std::byte* bytes, std::size_t count) {
  using Stored = typename E::Stored;
  const auto* values = reinterpret_cast<const Stored*>(bytes);
  Doubles squares[kDotVectors] = {};
  std::size_t i = 0;
  for (; i + kDotLanes <= count; i += kDotLanes) add_squares<E>(values + i, squares);
  if (i < count) {
    Stored last[kDotLanes] = {};
    __builtin_memcpy(last, values + i, (count - i) * sizeof(Stored));
    add_squares<E>(last, squares);
  }
  return sum_of_lanes(squares);
}

/// Likewise.
template <class E>
inline void add_dots(const typename E::Stored* a, const typename E::Stored* b, Doubles* dot,
                     Doubles* norm_a, Doubles* norm_b) {
  std::size_t vector = 0;
  for (std::size_t first = 0; first < kDotLanes; first += E::kLanes) {
    const auto wide_a = widened(E::load(a + first));
    const auto wide_b = widened(E::load(b + first));
    for (std::size_t p = 0; p < wide_a.kParts; ++p, ++vector) {
      dot[vector] += wide_a.part[p] * wide_b.part[p];
      norm_a[vector] += wide_a.part[p] * wide_a.part[p];
      norm_b[vector] += wide_b.part[p] * wide_b.part[p];
    }
  }
}

template <class E>
AdasumDots adasum_dots_of(const std::byte* a_bytes, const std::byte* b_bytes, std::size_t count) {
  using Stored = typename E::Stored;
  const auto* a = reinterpret_cast<const Stored*>(a_bytes);
  const auto* b = reinterpret_cast<const Stored*>(b_bytes);
  Doubles dot[kDotVectors] = {};
  Doubles norm_a[kDotVectors] = {};
  Doubles norm_b[kDotVectors] = {};
  std::size_t i = 0;
  for (; i + kDotLanes <= count; i += kDotLanes) add_dots<E>(a + i, b + i, dot, norm_a, norm_b);
  if (i < count) {
    Stored last_a[kDotLanes] = {};
    Stored last_b[kDotLanes] = {};
    __builtin_memcpy(last_a, a + i, (count - i) * sizeof(Stored));
    __builtin_memcpy(last_b, b + i, (count - i) * sizeof(Stored));
    add_dots<E>(last_a, last_b, dot, norm_a, norm_b);
  }
  return {sum_of_lanes(dot), sum_of_lanes(norm_a), sum_of_lanes(norm_b)};
}

template <class E>
void adasum_combine_of(const std::byte* a_bytes, const std::byte* b_bytes, AdasumFactors factors,
                       std::byte* out_bytes, std::size_t count) {
  using Stored = typename E::Stored;
  using Scalar = typename E::Scalar;
  const auto* a = reinterpret_cast<const Stored*>(a_bytes);
  const auto* b = reinterpret_cast<const Stored*>(b_bytes);
  auto* out = reinterpret_cast<Stored*>(out_bytes);
  const auto a_factor = static_cast<Scalar>(factors.a);
  const auto b_factor = static_cast<Scalar>(factors.b);
  const auto combined = [&](typename E::Vector of_a, typename E::Vector of_b) {
    return E::scaled(of_a, a_factor) + E::scaled(of_b, b_factor);
  };
  std::size_t i = 0;
  for (; i + E::kLanes <= count; i += E::kLanes) {
    E::store(out + i, combined(E::load(a + i), E::load(b + i)));
  }
  if (i == count) return;
  Stored result[E::kLanes];
  E::store(result, combined(load_partial<E>(a + i, count - i), load_partial<E>(b + i, count - i)));
  __builtin_memcpy(out + i, result, (count - i) * sizeof(Stored));
}

template <class E>
constexpr AdasumKernels kAdasum = {adasum_dots_of<E>, adasum_combine_of<E>};

}  // namespace
}  // namespace hora::internal
