/// The kernels themselves. Included once by each kernels_<instruction set>.cpp, which defines
/// HORA_KERNEL_TABLE and HORA_INSTRUCTION_SET. Everything but the table has internal linkage, and
/// nothing of the standard library is called (see kernel_table.h).
#include "ops/local/adasum_kernels.h"
#include "ops/local/convert_variant.h"
#include "ops/local/element.h"
#include "ops/local/kernel_table.h"
#include "ops/local/operations.h"
#include "ops/local/reduce_blocks.h"
#include "ops/local/stream_copy.h"

namespace hora {
namespace {

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

using Float16 = Half<Float16Conversion>;
using Bfloat16 = Half<Bfloat16Conversion>;
using Float32 = Plain<float, true>;
using Float64 = Plain<double, true>;

}  // namespace

// In the order of DataType. No code of its own for sums of int16, which gradients never are.
constinit const KernelTable HORA_KERNEL_TABLE = {
    HORA_INSTRUCTION_SET,
    {kFloating<Float16>, kFloating<Bfloat16>, kFloating<Float32>, kFloating<Float64>,
     integer<std::int32_t, std::uint32_t>(plain_sum<Plain<std::uint32_t, false>>),
     integer<std::int64_t, std::uint64_t>(plain_sum<Plain<std::uint64_t, false>>),
     integer<std::uint8_t, std::uint8_t>(plain_sum<Plain<std::uint8_t, false>>),
     integer<std::int8_t, std::uint8_t>(plain_sum<Plain<std::uint8_t, false>>),
     integer<std::int16_t, std::uint16_t>(reduce_blocks<Plain<std::uint16_t, false>, Sum>),
     kBoolean},
    {kAdasum<Float16>, kAdasum<Bfloat16>, kAdasum<Float32>, kAdasum<Float64>},
    {sum_of_squares_of<Float16>, sum_of_squares_of<Bfloat16>, sum_of_squares_of<Float32>,
     sum_of_squares_of<Float64>},
    stream_copy,
    {{convert<Float16, Float16>, convert<Float16, Bfloat16>, convert<Float16, Float32>, nullptr},
     {convert<Bfloat16, Float16>, convert<Bfloat16, Bfloat16>, convert<Bfloat16, Float32>, nullptr},
     {convert<Float32, Float16>, convert<Float32, Bfloat16>, convert<Float32, Float32>, nullptr},
     {nullptr, nullptr, nullptr, convert<Float64, Float64>}}};

}  // namespace hora
