/// The update kernels themselves. Included once by each update_kernels_<instruction set>.cpp, which
/// defines HORA_UPDATE_TABLE and HORA_INSTRUCTION_SET. Everything but the table has internal
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

/// The memory of a step: whole vectors, then the rest through a padded copy.
template <class E, class Step>
void each_vector(const Step& step, std::byte* const* memory, std::size_t count) {
  using Stored = typename E::Stored;
  constexpr std::size_t kArrays = 5;
  Stored* arrays[kArrays];
  for (std::size_t a = 0; a < kArrays; ++a) arrays[a] = reinterpret_cast<Stored*>(memory[a]);
  std::size_t i = 0;
  for (; i + E::kLanes <= count; i += E::kLanes) step.take(arrays, i);
  if (i == count) return;
  Stored rest[kArrays][E::kLanes] = {};
  Stored* padded[kArrays];
  const std::size_t bytes = (count - i) * sizeof(Stored);
  for (std::size_t a = 0; a < kArrays; ++a) {
    padded[a] = rest[a];
    if (arrays[a] != nullptr) __builtin_memcpy(rest[a], arrays[a] + i, bytes);
  }
  step.take(padded, 0);
  for (std::size_t a = 0; a < kArrays; ++a) {
    if (a != 1 && arrays[a] != nullptr) __builtin_memcpy(arrays[a] + i, rest[a], bytes);
  }
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

  void take(typename E::Stored* const* arrays, std::size_t i) const {
    const Vector parameter = E::load(arrays[0] + i);
    Vector d = E::load(arrays[1] + i);
    if (decays) d = multiply_add<E, kRounding>(parameter, weight_decay, d);
    if (keeps) {
      const Vector buffer =
          first ? d : multiply_add<E, kRounding>(d, brought, E::load(arrays[2] + i) * momentum);
      E::store(arrays[2] + i, buffer);
      d = nesterov ? multiply_add<E, kRounding>(buffer, momentum, d) : buffer;
    }
    E::store(arrays[0] + i, multiply_add<E, kRounding>(d, rate, parameter));
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

  void take(typename E::Stored* const* arrays, std::size_t i) const {
    Vector parameter = E::load(arrays[0] + i);
    Vector g = E::load(arrays[1] + i);
    if (decays) parameter = parameter * decay;
    if (adds_decay) g = multiply_add<E, kRounding>(parameter, weight_decay, g);
    const Vector average = multiply_add<E, kRounding>(g, brought1, E::load(arrays[2] + i) * beta1);
    E::store(arrays[2] + i, average);
    const Vector kept = E::load(arrays[3] + i) * beta2;
    const Vector square = fuses_square ? multiply_add<E, Rounding::fused>(brought2 * g, g, kept)
                                       : multiply_add<E, Rounding::separate>(brought2 * g, g, kept);
    E::store(arrays[3] + i, square);
    Vector second = square;
    if (amsgrad) {
      second = larger<E>(square, E::load(arrays[4] + i));
      E::store(arrays[4] + i, second);
    }
    const Vector denominator = square_root<E>(second) / root + epsilon;
    E::store(arrays[0] + i, parameter + rate * average / denominator);
  }

  Vector rate, root, beta1, brought1, beta2, brought2, epsilon, weight_decay, decay;
  bool adds_decay, decays, amsgrad, fuses_square;
};

template <class E>
void sgd(const SgdStep& step, std::byte* const* memory, std::size_t count) {
  if (step.rounding == Rounding::fused) {
    each_vector<E>(SgdVector<E, Rounding::fused>(step), memory, count);
  } else {
    each_vector<E>(SgdVector<E, Rounding::separate>(step), memory, count);
  }
}

template <class E>
void adam(const AdamStep& step, std::byte* const* memory, std::size_t count) {
  if (step.rounding == Rounding::fused) {
    each_vector<E>(AdamVector<E, Rounding::fused>(step), memory, count);
  } else {
    each_vector<E>(AdamVector<E, Rounding::separate>(step), memory, count);
  }
}

}  // namespace

constinit const UpdateTable HORA_UPDATE_TABLE = {
    HORA_INSTRUCTION_SET, {sgd<Float32>, sgd<Float64>}, {adam<Float32>, adam<Float64>}};

}  // namespace hora::internal
