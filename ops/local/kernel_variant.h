/// The kernels themselves. Included once by each kernels_<instruction set>.cpp, which defines
/// HORA_KERNEL_TABLE and HORA_INSTRUCTION_SET. Everything but the table has internal linkage, and
/// nothing of the standard library is called (see kernel_table.h).
#include "ops/local/convert_variant.h"
#include "ops/local/element.h"
#include "ops/local/kernel_table.h"

namespace hora {
namespace {

using Bytes = std::byte;

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

/// `count` elements, fewer than a vector; the other lanes are zero.
template <class E>
inline typename E::Vector load_partial(const typename E::Stored* from, std::size_t count) {
  typename E::Stored padded[E::kLanes] = {};
  __builtin_memcpy(padded, from, count * sizeof(typename E::Stored));
  return E::load(padded);
}

/// Elements [i, count), fewer than a vector, of any numbers of inputs and outputs.
template <class E>
void tail(const Bytes* const* inputs, std::size_t input_count, Bytes* const* outputs,
          std::size_t output_count, std::size_t i, std::size_t count, typename E::Scalar scale) {
  using Stored = typename E::Stored;
  const auto load = [&](std::size_t k) {
    return load_partial<E>(reinterpret_cast<const Stored*>(inputs[k]) + i, count - i);
  };
  typename E::Vector sum = load(0);
  for (std::size_t k = 1; k < input_count; ++k) sum += load(k);
  Stored result[E::kLanes];
  E::store(result, E::scaled(sum, scale));
  for (std::size_t o = 0; o < output_count; ++o) {
    __builtin_memcpy(reinterpret_cast<Stored*>(outputs[o]) + i, result,
                     (count - i) * sizeof(Stored));
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
  if (i < count) tail<E>(inputs, kInputs, outputs, kOutputs, i, count, scale);
}

/// The inputs of a reduction by reduce_blocks, and where it stands.
template <class E>
struct Group {
  const Bytes* const* inputs;
  Bytes* const* outputs;
  std::size_t output_count;
  std::size_t first, last;  ///< inputs of this group
  bool is_last;
};

/// As step(), for one group of inputs: sums go on from `sum` (unless it is the first group), and to
/// `sum`, or to the outputs from the last group.
template <class E, std::size_t kVectors>
inline void group_step(const Group<E>& group, std::size_t i, typename E::Vector* sum,
                       typename E::Scalar scale) {
  using Stored = typename E::Stored;
  const auto load = [&](std::size_t k, std::size_t v) {
    return E::load(reinterpret_cast<const Stored*>(group.inputs[k]) + i + v * E::kLanes);
  };
  typename E::Vector total[kVectors];
  const bool is_first = group.first == 0;
  for (std::size_t v = 0; v < kVectors; ++v) total[v] = is_first ? load(0, v) : sum[v];
  for (std::size_t k = is_first ? 1 : group.first; k < group.last; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) total[v] += load(k, v);
  }
  if (!group.is_last) {
    for (std::size_t v = 0; v < kVectors; ++v) sum[v] = total[v];
    return;
  }
  for (std::size_t v = 0; v < kVectors; ++v) total[v] = E::scaled(total[v], scale);
  for (std::size_t o = 0; o < group.output_count; ++o) {
    Stored* out = reinterpret_cast<Stored*>(group.outputs[o]) + i;
    for (std::size_t v = 0; v < kVectors; ++v) E::store(out + v * E::kLanes, total[v]);
  }
}

/// Any numbers of inputs and outputs: block by block, so that each block takes its inputs in groups
/// of as many streams as the hardware prefetches, with the sums in the first-level cache between.
template <class E>
void reduce_blocks(const Bytes* const* inputs, std::size_t input_count, Bytes* const* outputs,
                   std::size_t output_count, std::size_t count, typename E::Scalar scale) {
  constexpr std::size_t kGroup = 8;
  constexpr std::size_t kVectors = 4;
  constexpr std::size_t kBlockVectors = 4096 / kWidth;
  typename E::Vector sum[kBlockVectors];
  const std::size_t vectors = count / E::kLanes;
  for (std::size_t begin = 0; begin < vectors; begin += kBlockVectors) {
    const std::size_t left = vectors - begin;
    const std::size_t block = left < kBlockVectors ? left : kBlockVectors;
    for (std::size_t first = 0; first < input_count; first += kGroup) {
      const bool is_last = input_count - first <= kGroup;
      const Group<E> group{
          inputs, outputs, output_count, first, is_last ? input_count : first + kGroup, is_last};
      std::size_t v = 0;
      for (; v + kVectors <= block; v += kVectors) {
        group_step<E, kVectors>(group, (begin + v) * E::kLanes, sum + v, scale);
      }
      for (; v < block; ++v) group_step<E, 1>(group, (begin + v) * E::kLanes, sum + v, scale);
    }
  }
  const std::size_t i = vectors * E::kLanes;
  if (i < count) tail<E>(inputs, input_count, outputs, output_count, i, count, scale);
}

/// All of a node's ranks (as many outputs as inputs), or into staging (one output), up to four
/// ranks: the cases worth their own code.
template <class E>
void reduce(const Bytes* const* inputs, std::size_t input_count, Bytes* const* outputs,
            std::size_t output_count, std::size_t count, double scale) {
  const auto factor = static_cast<typename E::Scalar>(scale);
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
  reduce_blocks<E>(inputs, input_count, outputs, output_count, count, factor);
}

#if defined(__x86_64__)

/// 64 bytes to a 64-byte-aligned address, past the caches.
inline void stream_line(Bytes* out, const Bytes* in) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(out), _mm512_loadu_si512(in));
#elif defined(__AVX2__)
  for (int k = 0; k < 2; ++k) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out) + k,
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in) + k));
  }
#else
  for (int k = 0; k < 4; ++k) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(out) + k,
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + k));
  }
#endif
}

void stream_copy(Bytes* out, const Bytes* in, std::size_t bytes) {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(out) % 64;
  std::size_t head = misaligned == 0 ? 0 : 64 - misaligned;
  if (head > bytes) head = bytes;
  __builtin_memcpy(out, in, head);
  std::size_t i = head;
  for (; i + 64 <= bytes; i += 64) stream_line(out + i, in + i);
  __builtin_memcpy(out + i, in + i, bytes - i);
  _mm_sfence();
}

#else

void stream_copy(Bytes* out, const Bytes* in, std::size_t bytes) {
  __builtin_memcpy(out, in, bytes);
}

#endif

using Float16 = Half<Float16Conversion>;
using Bfloat16 = Half<Bfloat16Conversion>;
using Float32 = Plain<float, true>;
using Float64 = Plain<double, true>;

}  // namespace

// In the order of DataType.
constinit const KernelTable HORA_KERNEL_TABLE = {
    HORA_INSTRUCTION_SET,
    {reduce<Float16>, reduce<Bfloat16>, reduce<Float32>, reduce<Float64>,
     reduce<Plain<std::uint32_t, false>>, reduce<Plain<std::uint64_t, false>>,
     reduce<Plain<std::uint8_t, false>>},
    stream_copy,
    {{convert<Float16, Float16>, convert<Float16, Bfloat16>, convert<Float16, Float32>, nullptr},
     {convert<Bfloat16, Float16>, convert<Bfloat16, Bfloat16>, convert<Bfloat16, Float32>, nullptr},
     {convert<Float32, Float16>, convert<Float32, Bfloat16>, convert<Float32, Float32>, nullptr},
     {nullptr, nullptr, nullptr, convert<Float64, Float64>}}};

}  // namespace hora
