/// The update kernels themselves. Included once by each update_kernels_<instruction set>.cpp, which
/// defines HORA_TABLE and HORA_INSTRUCTION_SET. Everything but the table has internal
/// linkage, and nothing of the standard library is called (see kernel_table.h).
#include "ops/local/element.h"
#include "ops/local/update_table.h"

namespace hora::internal {
namespace {

using Float32 = Plain<float, true>;
using Float64 = Plain<double, true>;

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

/// Past the cache; `to` is aligned to the vector.
template <class E>
void stream_vector(typename E::Stored* to, typename E::Vector vector) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)vector);
#elif defined(__AVX2__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)vector);
#elif defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)vector);
#else
  E::store(to, vector);
#endif
}

inline void fence_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
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
        stream_vector<E>(arrays.copy_of(k) + i, parameter);
      }
    }
    for (std::size_t k = at_once ? arrays.copy_count : 0; k < arrays.copy_count; ++k) {
      for (std::size_t j = block_begin; j < block_end; j += E::kLanes) {
        stream_vector<E>(arrays.copy_of(k) + j, E::load(arrays.parameter + j));
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

}  // namespace

constinit const UpdateTable HORA_TABLE = {
    HORA_INSTRUCTION_SET, {sgd<Float32>, sgd<Float64>}, {adam<Float32>, adam<Float64>}};

}  // namespace hora::internal
