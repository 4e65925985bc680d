/// Reductions: what becomes of two vectors of elements, and the loops over any numbers of inputs
/// and outputs. All in an unnamed namespace (see kernel_table.h).
#pragma once

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

/// Of elements that are 0 or 1 (see Boolean).
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

}  // namespace
}  // namespace hora::internal
