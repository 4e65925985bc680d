/// The kernels. Included once by a source for each instruction set, which defines HORA_TABLE and
/// HORA_INSTRUCTION_SET (CMakeLists.txt). All but the table has internal linkage, and nothing of
/// the standard library is called (see kernel_table.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/local/element.h"
#include "ops/local/kernel_table.h"

namespace hora::internal {
namespace {

/// kPrescaled: inputs are multiplied by Scales::pre. The plain sum, which is used most, is not, and
/// has more code of its own; it is PrescaledSum that serves where pre is not 1.
struct Sum {
  static constexpr bool kPrescaled = false;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a + b;
  }
};

struct PrescaledSum : Sum {
  static constexpr bool kPrescaled = true;
};

struct Product {
  static constexpr bool kPrescaled = true;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a * b;
  }
};

/// True in the lanes with the sign bit: lanes of comparisons are signed integers as wide as the
/// elements.
template <class Mask, class Vector>
inline Mask negative(Vector vector) {
  return (Mask)vector < 0;
}

/// IEEE 754-2019's minimum: NaN where one is, and -0 below +0, so that the order of the inputs does
/// not matter. Among equals one is chosen, not made of both: where the CPU takes subnormals for
/// zero, they are equal to each other. On integers what concerns NaN and zero changes nothing.
struct Minimum {
  static constexpr bool kPrescaled = true;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    using Mask = decltype(a < b);
    return (b < a) | (b != b) | ((a == b) & negative<Mask>(b)) ? b : a;
  }
};

struct Maximum {
  static constexpr bool kPrescaled = true;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    using Mask = decltype(a < b);
    return (a < b) | (b != b) | ((a == b) & negative<Mask>(a)) ? b : a;
  }
};

/// Elements that are 0 or 1 (see Boolean).
struct Or {
  static constexpr bool kPrescaled = false;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a | b;
  }
};

struct And {
  static constexpr bool kPrescaled = false;
  template <class Vector>
  static Vector combined(Vector a, Vector b) {
    return a & b;
  }
};

using Bytes = std::byte;

template <class E, class Op>
inline typename E::Vector prescaled(typename E::Vector vector, typename E::Scalar pre) {
  if constexpr (Op::kPrescaled) {
    return E::scaled(vector, pre);
  } else {
    return vector;
  }
}

/// Scales in the type of the sum.
template <class E>
struct Factors {
  typename E::Scalar pre = 1;
  typename E::Scalar post = 1;
};
template <class E>
inline Factors<E> factors_of(Scales scales) {
  if constexpr (E::kScaled) {
    using Scalar = typename E::Scalar;
    return {static_cast<Scalar>(scales.pre), static_cast<Scalar>(scales.post)};
  } else {
    return {};
  }
}

/// Elements [i, count), fewer than a vector, of any numbers of inputs and outputs.
template <class E, class Op>
void tail(const Bytes* const* inputs, std::size_t input_count, Bytes* const* outputs,
          std::size_t output_count, std::size_t i, std::size_t count, Factors<E> factors) {
  using Stored = typename E::Stored;
  const auto load = [&](std::size_t k) {
    return prescaled<E, Op>(
        load_partial<E>(reinterpret_cast<const Stored*>(inputs[k]) + i, count - i), factors.pre);
  };
  typename E::Vector total = load(0);
  for (std::size_t k = 1; k < input_count; ++k) total = Op::combined(total, load(k));
  Stored result[E::kLanes];
  E::store(result, E::scaled(total, factors.post));
  for (std::size_t o = 0; o < output_count; ++o) {
    __builtin_memcpy(reinterpret_cast<Stored*>(outputs[o]) + i, result,
                     (count - i) * sizeof(Stored));
  }
}

/// The inputs of a reduction by reduce_blocks, and where it stands.
template <class E>
struct InputGroup {
  const Bytes* const* inputs;
  Bytes* const* outputs;
  std::size_t output_count;
  std::size_t first, last;  ///< inputs of this group
  bool is_last;
};

/// Elements [i, i + kVectors vectors) of one group of inputs: goes on from `partial` (unless it is
/// the first group), and to `partial`, or to the outputs from the last group. Everything is read
/// before anything is written, so that an output may be an input.
template <class E, class Op, std::size_t kVectors>
inline void group_step(const InputGroup<E>& group, std::size_t i, typename E::Vector* partial,
                       Factors<E> factors) {
  using Stored = typename E::Stored;
  const auto load = [&](std::size_t k, std::size_t v) {
    return prescaled<E, Op>(
        E::load(reinterpret_cast<const Stored*>(group.inputs[k]) + i + v * E::kLanes), factors.pre);
  };
  typename E::Vector total[kVectors];
  const bool is_first = group.first == 0;
  for (std::size_t v = 0; v < kVectors; ++v) total[v] = is_first ? load(0, v) : partial[v];
  for (std::size_t k = is_first ? 1 : group.first; k < group.last; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) total[v] = Op::combined(total[v], load(k, v));
  }
  if (!group.is_last) {
    for (std::size_t v = 0; v < kVectors; ++v) partial[v] = total[v];
    return;
  }
  decltype(E::packed(total[0])) packed[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    packed[v] = E::packed(E::scaled(total[v], factors.post));
  }
  for (std::size_t o = 0; o < group.output_count; ++o) {
    Stored* out = reinterpret_cast<Stored*>(group.outputs[o]) + i;
    for (std::size_t v = 0; v < kVectors; ++v) store_vector(out + v * E::kLanes, packed[v]);
  }
}

/// Block by block, so that each block takes its inputs in groups of as many streams as the hardware
/// prefetches, with the partial results in the first-level cache between.
template <class E, class Op>
void reduce_blocks(const Bytes* const* inputs, std::size_t input_count, Bytes* const* outputs,
                   std::size_t output_count, std::size_t count, Scales scales) {
  constexpr std::size_t kGroup = 8;
  constexpr std::size_t kVectors = 4;
  constexpr std::size_t kBlockVectors = 4096 / kWidth;
  typename E::Vector partial[kBlockVectors];
  const auto factors = factors_of<E>(scales);
  const std::size_t vectors = count / E::kLanes;
  for (std::size_t begin = 0; begin < vectors; begin += kBlockVectors) {
    const std::size_t left = vectors - begin;
    const std::size_t block = left < kBlockVectors ? left : kBlockVectors;
    for (std::size_t first = 0; first < input_count; first += kGroup) {
      const bool is_last = input_count - first <= kGroup;
      const InputGroup<E> group{
          inputs, outputs, output_count, first, is_last ? input_count : first + kGroup, is_last};
      std::size_t v = 0;
      for (; v + kVectors <= block; v += kVectors) {
        group_step<E, Op, kVectors>(group, (begin + v) * E::kLanes, partial + v, factors);
      }
      for (; v < block; ++v) {
        group_step<E, Op, 1>(group, (begin + v) * E::kLanes, partial + v, factors);
      }
    }
  }
  const std::size_t i = vectors * E::kLanes;
  if (i < count) tail<E, Op>(inputs, input_count, outputs, output_count, i, count, factors);
}

/// Elements [i, i + kVectors vectors) of `kInputs` inputs into `kOutputs` outputs: everything is
/// read before anything is written, so that an output may be an input.
template <class E, std::size_t kInputs, std::size_t kOutputs, std::size_t kVectors>
inline void step(const typename E::Stored* const* in, typename E::Stored* const* out, std::size_t i,
                 typename E::Scalar scale) {
  typename E::Vector sum[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) sum[v] = E::load(in[0] + i + v * E::kLanes);
  for (std::size_t k = 1; k < kInputs; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) sum[v] += E::load(in[k] + i + v * E::kLanes);
  }
  for (std::size_t v = 0; v < kVectors; ++v) sum[v] = E::scaled(sum[v], scale);
  for (std::size_t o = 0; o < kOutputs; ++o) {
    for (std::size_t v = 0; v < kVectors; ++v) E::store(out[o] + i + v * E::kLanes, sum[v]);
  }
}

/// Numbers of inputs and outputs known to the compiler: sums stay in registers.
template <class E, std::size_t kInputs, std::size_t kOutputs>
void reduce_fixed(const Bytes* const* inputs, Bytes* const* outputs, std::size_t count,
                  typename E::Scalar scale) {
  using Stored = typename E::Stored;
  const Stored* in[kInputs];
  Stored* out[kOutputs];
  for (std::size_t k = 0; k < kInputs; ++k) in[k] = reinterpret_cast<const Stored*>(inputs[k]);
  for (std::size_t o = 0; o < kOutputs; ++o) out[o] = reinterpret_cast<Stored*>(outputs[o]);
  constexpr std::size_t kVectors = 4;
  std::size_t i = 0;
  for (; i + kVectors * E::kLanes <= count; i += kVectors * E::kLanes) {
    step<E, kInputs, kOutputs, kVectors>(in, out, i, scale);
  }
  for (; i + E::kLanes <= count; i += E::kLanes) step<E, kInputs, kOutputs, 1>(in, out, i, scale);
  if (i < count) {
    tail<E, Sum>(inputs, kInputs, outputs, kOutputs, i, count, Factors<E>{.post = scale});
  }
}

/// All of a node's ranks (as many outputs as inputs), or into staging (one output), up to four
/// ranks: the cases worth their own code.
template <class E>
void plain_sum(const Bytes* const* inputs, std::size_t input_count, Bytes* const* outputs,
               std::size_t output_count, std::size_t count, Scales scales) {
  const auto factor = factors_of<E>(scales).post;
  if (output_count == 1) {
    if (input_count == 1) return reduce_fixed<E, 1, 1>(inputs, outputs, count, factor);
    if (input_count == 2) return reduce_fixed<E, 2, 1>(inputs, outputs, count, factor);
    if (input_count == 3) return reduce_fixed<E, 3, 1>(inputs, outputs, count, factor);
    if (input_count == 4) return reduce_fixed<E, 4, 1>(inputs, outputs, count, factor);
  } else if (output_count == input_count) {
    if (input_count == 2) return reduce_fixed<E, 2, 2>(inputs, outputs, count, factor);
    if (input_count == 3) return reduce_fixed<E, 3, 3>(inputs, outputs, count, factor);
    if (input_count == 4) return reduce_fixed<E, 4, 4>(inputs, outputs, count, factor);
  }
  reduce_blocks<E, Sum>(inputs, input_count, outputs, output_count, count, scales);
}

template <class E>
constexpr ReduceKernels kFloating = {
    plain_sum<E>,
    {reduce_blocks<E, PrescaledSum>, reduce_blocks<E, PrescaledSum>, reduce_blocks<E, Minimum>,
     reduce_blocks<E, Maximum>, reduce_blocks<E, Product>}};

/// `T` as it is compared, `Unsigned` as it is summed (by `sum`) and multiplied.
template <class T, class Unsigned>
constexpr ReduceKernels integer(ReduceKernel sum) {
  return {
      sum,
      {sum, sum, reduce_blocks<Plain<T, false>, Minimum>, reduce_blocks<Plain<T, false>, Maximum>,
       reduce_blocks<Plain<Unsigned, false>, Product>}};
}

constexpr ReduceKernels kBoolean = {
    reduce_blocks<Boolean, Or>,
    {reduce_blocks<Boolean, Or>, reduce_blocks<Boolean, Or>, reduce_blocks<Boolean, And>,
     reduce_blocks<Boolean, Or>, reduce_blocks<Boolean, And>}};

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

/// Sums over kDotLanes elements.
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

/// Sums of products and of squares over kDotLanes elements of two arrays.
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

/// The largest magnitude among the values seen, lane by lane. Without the sign bit, the bits of
/// floating-point numbers are in the order of magnitudes, and after them come infinity and NaN.
template <class E>
class Largest {
 public:
  void see(typename E::Vector values) {
    const Bits sign = __builtin_bit_cast(Bits, -typename E::Vector{});
    const Bits magnitude = __builtin_bit_cast(Bits, values) & ~sign;
    bits_ = magnitude > bits_ ? magnitude : bits_;
  }
  bool is_at_most(typename E::Scalar limit) const {
    const Bits most = __builtin_bit_cast(Bits, typename E::Vector{} + limit);
    for (std::size_t lane = 0; lane < E::kLanes; ++lane) {
      if (bits_[lane] > most[lane]) return false;
    }
    return true;
  }

 private:
  using Bits = decltype(typename E::Vector{} > typename E::Vector{});
  Bits bits_{};
};

/// `to` is aligned to them, or to the widest vector.
template <std::size_t kBytes>
inline void stream_bytes(void* to, const void* from) {
#if defined(__x86_64__)
  if constexpr (kBytes > kWidth) {
    constexpr std::size_t kHalf = kBytes / 2;
    stream_bytes<kHalf>(to, from);
    stream_bytes<kHalf>(static_cast<Bytes*>(to) + kHalf, static_cast<const Bytes*>(from) + kHalf);
  } else if constexpr (kBytes == 8) {
    long long bits;
    __builtin_memcpy(&bits, from, 8);
    _mm_stream_si64(static_cast<long long*>(to), bits);
  } else if constexpr (kBytes == 16) {
    _mm_stream_si128(static_cast<__m128i*>(to), load_vector<__m128i>(from));
  }
#if defined(__AVX2__)
  if constexpr (kBytes == 32 && kBytes <= kWidth) {
    _mm256_stream_si256(static_cast<__m256i*>(to), load_vector<__m256i>(from));
  }
#endif
#if defined(__AVX512F__)
  if constexpr (kBytes == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(to), load_vector<__m512i>(from));
  }
#endif
#else
  __builtin_memcpy(to, from, kBytes);
#endif
}

inline void fence_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// One conversion: the elements in order, several vectors at a time.
template <class Source, class Target, bool kPastCaches>
struct ConversionLoop {
  static constexpr std::size_t kLanes = Source::kLanes;
  typename Target::Stored* out;
  const typename Source::Stored* in;
  typename Source::Scalar scale;
  Largest<Source> largest = {};

  /// Elements [i, i + kVectors vectors): everything is read before anything is written.
  template <std::size_t kVectors>
  void step(std::size_t i) {
    typename Source::Vector values[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) values[v] = Source::load(in + i + v * kLanes);
    for (std::size_t v = 0; v < kVectors; ++v) {
      values[v] = Source::scaled(values[v], scale);
      largest.see(values[v]);
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      auto* const to = out + i + v * kLanes;
      if constexpr (kPastCaches) {
        typename Target::Stored stored[kLanes];
        Target::store(stored, values[v]);
        stream_bytes<sizeof stored>(to, stored);
      } else {
        Target::store(to, values[v]);
      }
    }
  }

  /// Elements [i, count), fewer than a vector.
  void tail(std::size_t i, std::size_t count) {
    typename Source::Stored padded[kLanes] = {};
    __builtin_memcpy(padded, in + i, (count - i) * sizeof(*in));
    const auto values = Source::scaled(Source::load(padded), scale);
    largest.see(values);
    typename Target::Stored result[kLanes];
    Target::store(result, values);
    __builtin_memcpy(out + i, result, (count - i) * sizeof(*out));
  }

  void run(std::size_t count) {
    constexpr std::size_t kVectors = 4;
    std::size_t i = 0;
    for (; i + kVectors * kLanes <= count; i += kVectors * kLanes) step<kVectors>(i);
    for (; i + kLanes <= count; i += kLanes) step<1>(i);
    if (i < count) tail(i, count);
    if constexpr (kPastCaches) fence_streams();
  }
};

/// Source and target have one type of vector.
template <class Source, class Target>
bool convert(std::byte* out, const std::byte* in, std::size_t count, double scale, double limit,
             bool past_caches) {
  auto* const to = reinterpret_cast<typename Target::Stored*>(out);
  const auto* const from = reinterpret_cast<const typename Source::Stored*>(in);
  const auto factor = static_cast<typename Source::Scalar>(scale);
  const auto most = static_cast<typename Source::Scalar>(limit);
  if (past_caches) {
    ConversionLoop<Source, Target, true> loop{to, from, factor};
    loop.run(count);
    return loop.largest.is_at_most(most);
  }
  ConversionLoop<Source, Target, false> loop{to, from, factor};
  loop.run(count);
  return loop.largest.is_at_most(most);
}

void stream_copy(Bytes* out, const Bytes* in, std::size_t bytes) {
#if defined(__x86_64__)
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(out) % 64;
  std::size_t head = misaligned == 0 ? 0 : 64 - misaligned;
  if (head > bytes) head = bytes;
  __builtin_memcpy(out, in, head);
  std::size_t i = head;
  for (; i + 64 <= bytes; i += 64) stream_bytes<64>(out + i, in + i);
  __builtin_memcpy(out + i, in + i, bytes - i);
  fence_streams();
#else
  __builtin_memcpy(out, in, bytes);
#endif
}

template <class E>
typename E::Vector constant(double value) {
  return typename E::Vector{} + static_cast<typename E::Scalar>(value);
}

inline float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline double fused(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
inline float root(float value) {
  return __builtin_sqrtf(value);
}
inline double root(double value) {
  return __builtin_sqrt(value);
}

/// a * b + c, rounded once.
template <class E>
typename E::Vector fused_multiply_add(typename E::Vector a, typename E::Vector b,
                                      typename E::Vector c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(typename E::Scalar) == 4) {
    return _mm512_fmadd_ps(a, b, c);
  } else {
    return _mm512_fmadd_pd(a, b, c);
  }
#elif defined(__FMA__)
  if constexpr (sizeof(typename E::Scalar) == 4) {
    return _mm256_fmadd_ps(a, b, c);
  } else {
    return _mm256_fmadd_pd(a, b, c);
  }
#else
  for (std::size_t lane = 0; lane < E::kLanes; ++lane) c[lane] = fused(a[lane], b[lane], c[lane]);
  return c;
#endif
}

// With a full mask: GCC 12 warns about its own header in the forms without one.
template <class E>
typename E::Vector square_root(typename E::Vector value) {
  [[maybe_unused]] constexpr bool kSingle = sizeof(typename E::Scalar) == 4;
#if defined(__AVX512F__)
  if constexpr (kSingle) {
    return _mm512_maskz_sqrt_ps(0xffff, value);
  } else {
    return _mm512_maskz_sqrt_pd(0xff, value);
  }
#elif defined(__AVX2__)
  if constexpr (kSingle) {
    return _mm256_sqrt_ps(value);
  } else {
    return _mm256_sqrt_pd(value);
  }
#elif defined(__x86_64__)
  if constexpr (kSingle) {
    return _mm_sqrt_ps(value);
  } else {
    return _mm_sqrt_pd(value);
  }
#else
  for (std::size_t lane = 0; lane < E::kLanes; ++lane) value[lane] = root(value[lane]);
  return value;
#endif
}

template <class E, Rounding kRounding>
typename E::Vector multiply_add(typename E::Vector a, typename E::Vector b, typename E::Vector c) {
  if constexpr (kRounding == Rounding::fused) {
    return fused_multiply_add<E>(a, b, c);
  } else {
    return a * b + c;
  }
}

/// NaN where either is.
template <class E>
typename E::Vector larger(typename E::Vector a, typename E::Vector b) {
  typename E::Vector larger = a > b ? a : b;
  return a != a ? a : larger;
}

/// The elements that a step reads and writes.
template <class E>
struct Arrays {
  using Stored = typename E::Stored;
  using Vector = typename E::Vector;

  explicit Arrays(const UpdateArrays& arrays)
      : parameter(reinterpret_cast<Stored*>(arrays.parameter)),
        gradients(arrays.gradients),
        gradient_count(arrays.gradient_count),
        pre(constant<E>(arrays.scales.pre)),
        post(constant<E>(arrays.scales.post)),
        copies(arrays.copies),
        copy_count(arrays.copy_count) {
    for (int s = 0; s < 3; ++s) state[s] = reinterpret_cast<Stored*>(arrays.state[s]);
  }

  const Stored* gradient_of(std::size_t k) const {
    return reinterpret_cast<const Stored*>(gradients[k]);
  }
  Stored* copy_of(std::size_t k) const { return reinterpret_cast<Stored*>(copies[k]); }
  /// Averages the vectors that `load` gives of each gradient. A factor of 1 changes no bit.
  template <class Load>
  Vector average(Load load) const {
    Vector sum = load(gradient_of(0)) * pre;
    for (std::size_t k = 1; k < gradient_count; ++k) sum += load(gradient_of(k)) * pre;
    return sum * post;
  }

  Stored* parameter;
  const std::byte* const* gradients;
  std::size_t gradient_count;
  Vector pre, post;
  Stored* state[3];
  std::byte* const* copies;
  std::size_t copy_count;
};

/// The vector at `i`: gives the new parameter, which is stored but for the copies.
template <class E, class Step>
typename E::Vector take_vector(const Step& step, const Arrays<E>& arrays, std::size_t i) {
  const auto gradient =
      arrays.average([i](const typename E::Stored* from) { return E::load(from + i); });
  const auto parameter = step.take(E::load(arrays.parameter + i), gradient, arrays.state, i);
  E::store(arrays.parameter + i, parameter);
  return parameter;
}

/// Elements [i, i + count), fewer than a vector, through padded copies.
template <class E, class Step>
void take_partial(const Step& step, const Arrays<E>& arrays, std::size_t i, std::size_t count) {
  using Stored = typename E::Stored;
  const std::size_t bytes = count * sizeof(Stored);
  const auto gradient =
      arrays.average([&](const Stored* from) { return load_partial<E>(from + i, count); });
  Stored parameter[E::kLanes] = {};
  Stored state[3][E::kLanes] = {};
  __builtin_memcpy(parameter, arrays.parameter + i, bytes);
  Stored* states[3];
  for (int s = 0; s < 3; ++s) {
    states[s] = state[s];
    if (arrays.state[s] != nullptr) __builtin_memcpy(state[s], arrays.state[s] + i, bytes);
  }
  E::store(parameter, step.take(E::load(parameter), gradient, states, 0));
  for (int s = 0; s < 3; ++s) {
    if (arrays.state[s] != nullptr) __builtin_memcpy(arrays.state[s] + i, state[s], bytes);
  }
  __builtin_memcpy(arrays.parameter + i, parameter, bytes);
  for (std::size_t k = 0; k < arrays.copy_count; ++k) {
    __builtin_memcpy(arrays.copy_of(k) + i, parameter, bytes);
  }
}

/// The first element of [begin, end) at which all copies are aligned to a vector; `end` where there
/// is none.
template <class E>
std::size_t first_aligned(const Arrays<E>& arrays, std::size_t begin, std::size_t end) {
  constexpr std::size_t kBytes = E::kLanes * sizeof(typename E::Stored);
  const auto past = [&](std::size_t k) {
    return reinterpret_cast<std::uintptr_t>(arrays.copy_of(k) + begin) % kBytes;
  };
  for (std::size_t k = 1; k < arrays.copy_count; ++k) {
    if (past(k) != past(0)) return end;
  }
  if (past(0) % sizeof(typename E::Stored) != 0) return end;
  const std::size_t elements = (kBytes - past(0)) % kBytes / sizeof(typename E::Stored);
  return elements < end - begin ? begin + elements : end;
}

/// Elements [begin, end), whole vectors, whose copies are aligned.
template <class E, class Step>
void stream_vectors(const Step& step, const Arrays<E>& arrays, std::size_t begin, std::size_t end) {
  // A processor has some ten buffers for lines that are written past its cache.
  constexpr std::size_t kMostAtOnce = 4;
  constexpr std::size_t kBlock = 4096 / sizeof(typename E::Stored);
  const bool at_once = arrays.copy_count <= kMostAtOnce;
  for (std::size_t i = begin; i < end;) {
    const std::size_t block_begin = i;
    const std::size_t block_end = end - i < kBlock ? end : i + kBlock;
    for (; i < block_end; i += E::kLanes) {
      const auto parameter = take_vector<E>(step, arrays, i);
      if (!at_once) continue;
      for (std::size_t k = 0; k < arrays.copy_count; ++k) {
        stream_bytes<kWidth>(arrays.copy_of(k) + i, &parameter);
      }
    }
    for (std::size_t k = at_once ? arrays.copy_count : 0; k < arrays.copy_count; ++k) {
      for (std::size_t j = block_begin; j < block_end; j += E::kLanes) {
        stream_bytes<kWidth>(arrays.copy_of(k) + j, arrays.parameter + j);
      }
    }
  }
  fence_streams();
}

template <class E, class Step>
void each_vector(const Step& step, const UpdateArrays& memory, std::size_t begin, std::size_t end) {
  const Arrays<E> arrays(memory);
  std::size_t i = begin;
  if (memory.streams && arrays.copy_count > 0) {
    const std::size_t first = first_aligned<E>(arrays, begin, end);
    if (first < end) {
      if (first > begin) take_partial<E>(step, arrays, begin, first - begin);
      i = first + (end - first) / E::kLanes * E::kLanes;
      stream_vectors<E>(step, arrays, first, i);
    }
  }
  for (; i + E::kLanes <= end; i += E::kLanes) {
    const auto parameter = take_vector<E>(step, arrays, i);
    for (std::size_t k = 0; k < arrays.copy_count; ++k) E::store(arrays.copy_of(k) + i, parameter);
  }
  if (i < end) take_partial<E>(step, arrays, i, end - i);
}

template <class E, Rounding kRounding>
struct SgdVector {
  using Vector = typename E::Vector;

  explicit SgdVector(const SgdStep& step)
      : rate(constant<E>(-step.rate)),
        momentum(constant<E>(step.momentum)),
        brought(constant<E>(1 - step.dampening)),
        weight_decay(constant<E>(step.weight_decay)),
        decays(step.weight_decay != 0),
        keeps(step.momentum != 0),
        nesterov(step.nesterov),
        first(step.first) {}

  /// The new parameter; the state is stored.
  Vector take(Vector parameter, Vector d, typename E::Stored* const* state, std::size_t i) const {
    if (decays) d = multiply_add<E, kRounding>(parameter, weight_decay, d);
    if (keeps) {
      const Vector buffer =
          first ? d : multiply_add<E, kRounding>(d, brought, E::load(state[0] + i) * momentum);
      E::store(state[0] + i, buffer);
      d = nesterov ? multiply_add<E, kRounding>(buffer, momentum, d) : buffer;
    }
    return multiply_add<E, kRounding>(d, rate, parameter);
  }

  Vector rate, momentum, brought, weight_decay;
  bool decays, keeps, nesterov, first;
};

template <class E, Rounding kRounding>
struct AdamVector {
  using Vector = typename E::Vector;

  explicit AdamVector(const AdamStep& step)
      : rate(constant<E>(-step.rate)),
        root(constant<E>(step.root)),
        beta1(constant<E>(step.beta1)),
        brought1(constant<E>(1 - step.beta1)),
        beta2(constant<E>(step.beta2)),
        brought2(constant<E>(1 - step.beta2)),
        epsilon(constant<E>(step.epsilon)),
        weight_decay(constant<E>(step.weight_decay)),
        decay(constant<E>(step.decay)),
        adds_decay(step.weight_decay != 0),
        decays(step.decay != 1),
        amsgrad(step.amsgrad),
        fuses_square(step.square_rounding == Rounding::fused) {}

  /// The new parameter; the state is stored.
  Vector take(Vector parameter, Vector g, typename E::Stored* const* state, std::size_t i) const {
    if (decays) parameter = parameter * decay;
    if (adds_decay) g = multiply_add<E, kRounding>(parameter, weight_decay, g);
    const Vector average = multiply_add<E, kRounding>(g, brought1, E::load(state[0] + i) * beta1);
    E::store(state[0] + i, average);
    const Vector kept = E::load(state[1] + i) * beta2;
    const Vector square = fuses_square ? multiply_add<E, Rounding::fused>(brought2 * g, g, kept)
                                       : multiply_add<E, Rounding::separate>(brought2 * g, g, kept);
    E::store(state[1] + i, square);
    Vector second = square;
    if (amsgrad) {
      second = larger<E>(square, E::load(state[2] + i));
      E::store(state[2] + i, second);
    }
    const Vector denominator = square_root<E>(second) / root + epsilon;
    return parameter + rate * average / denominator;
  }

  Vector rate, root, beta1, brought1, beta2, brought2, epsilon, weight_decay, decay;
  bool adds_decay, decays, amsgrad, fuses_square;
};

template <class E>
void sgd(const SgdStep& step, const UpdateArrays& memory, std::size_t begin, std::size_t end) {
  if (step.rounding == Rounding::fused) {
    each_vector<E>(SgdVector<E, Rounding::fused>(step), memory, begin, end);
  } else {
    each_vector<E>(SgdVector<E, Rounding::separate>(step), memory, begin, end);
  }
}

template <class E>
void adam(const AdamStep& step, const UpdateArrays& memory, std::size_t begin, std::size_t end) {
  if (step.rounding == Rounding::fused) {
    each_vector<E>(AdamVector<E, Rounding::fused>(step), memory, begin, end);
  } else {
    each_vector<E>(AdamVector<E, Rounding::separate>(step), memory, begin, end);
  }
}

using Float16 = Half<Float16Conversion>;
using Bfloat16 = Half<Bfloat16Conversion>;
using Float32 = Plain<float, true>;
using Float64 = Plain<double, true>;

}  // namespace

// In the order of DataType. No code of its own for sums of 16-bit integers, which gradients never
// are.
constinit const KernelTable HORA_TABLE = {
    HORA_INSTRUCTION_SET,
    {kFloating<Float16>, kFloating<Bfloat16>, kFloating<Float32>, kFloating<Float64>,
     integer<std::int32_t, std::uint32_t>(plain_sum<Plain<std::uint32_t, false>>),
     integer<std::int64_t, std::uint64_t>(plain_sum<Plain<std::uint64_t, false>>),
     integer<std::uint8_t, std::uint8_t>(plain_sum<Plain<std::uint8_t, false>>),
     integer<std::int8_t, std::uint8_t>(plain_sum<Plain<std::uint8_t, false>>),
     integer<std::int16_t, std::uint16_t>(reduce_blocks<Plain<std::uint16_t, false>, Sum>),
     kBoolean,
     integer<std::uint16_t, std::uint16_t>(reduce_blocks<Plain<std::uint16_t, false>, Sum>),
     integer<std::uint32_t, std::uint32_t>(plain_sum<Plain<std::uint32_t, false>>),
     integer<std::uint64_t, std::uint64_t>(plain_sum<Plain<std::uint64_t, false>>)},
    {kAdasum<Float16>, kAdasum<Bfloat16>, kAdasum<Float32>, kAdasum<Float64>},
    {sum_of_squares_of<Float16>, sum_of_squares_of<Bfloat16>, sum_of_squares_of<Float32>,
     sum_of_squares_of<Float64>},
    stream_copy,
    {{convert<Float16, Float16>, convert<Float16, Bfloat16>, convert<Float16, Float32>, nullptr},
     {convert<Bfloat16, Float16>, convert<Bfloat16, Bfloat16>, convert<Bfloat16, Float32>, nullptr},
     {convert<Float32, Float16>, convert<Float32, Bfloat16>, convert<Float32, Float32>, nullptr},
     {nullptr, nullptr, nullptr, convert<Float64, Float64>}},
    {sgd<Float32>, sgd<Float64>},
    {adam<Float32>, adam<Float64>}};

}  // namespace hora::internal
