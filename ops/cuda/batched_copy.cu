#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/cuda/element.cuh"
#include "ops/cuda/kernels.h"

namespace hora::internal {
namespace {

constexpr int kThreads = 256;
/// So at most 40 registers a thread: 96 KiB of loads in flight on each multiprocessor, several
/// times what the memory's latency asks for. Turing's hold 1024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocksPerMultiprocessor = 4;
#else
constexpr int kBlocksPerMultiprocessor = 6;
#endif

/// The bits of an element of no arithmetic type: copied as they are. As a bool: whether they are 0.
template <class T>
constexpr bool kIsBits = std::is_unsigned_v<T>;

template <class Source, class Target>
using Wide = std::conditional_t<std::is_same_v<Source, double> || std::is_same_v<Target, double>,
                                double, float>;

/// Elements one after the other, on their way through one thread. kChecked: `outside` becomes true
/// where a product is not within the limit.
template <class Source, class Target, bool kChecked>
class Converter {
 public:
  explicit __device__ Converter(const CopyArithmetic& arithmetic)
      : scale_(static_cast<Wide<Source, Target>>(arithmetic.scale)),
        limit_(static_cast<Wide<Source, Target>>(arithmetic.limit)) {}

  __device__ Target operator()(Source value) {
    if constexpr (std::is_same_v<Target, bool>) {
      return value != 0;
    } else if constexpr (kIsBits<Source>) {
      return value;
    } else {
      const auto product = static_cast<Wide<Source, Target>>(widened(value)) * scale_;
      // NaN is within no limit.
      if constexpr (kChecked) outside_ |= !(fabs(product) <= limit_);
      return rounded<Target>(product);
    }
  }

  /// All threads that have found something write the same value.
  __device__ void tell(void* flag) const {
    if constexpr (kChecked) {
      if (outside_) *static_cast<Target*>(flag) = rounded<Target>(1.0F);
    }
  }

 private:
  Wide<Source, Target> scale_;
  Wide<Source, Target> limit_;
  bool outside_ = false;
};

/// `kCount` elements by one load and one store. All bits zero is the value 0 of every type.
template <class Source, class Target, int kCount>
struct Group {
  using SourceWord = Word<kCount* static_cast<int>(sizeof(Source))>;
  using TargetWord = Word<kCount* static_cast<int>(sizeof(Target))>;

  template <class Convert>
  static __device__ TargetWord convert(const SourceWord& word, Convert& convert_one) {
    Source values[kCount];
    Target results[kCount];
    std::memcpy(values, &word, sizeof(word));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      results[i] = convert_one(values[i]);
    }
    TargetWord result;
    std::memcpy(&result, results, sizeof(result));
    return result;
  }

  /// The whole block copies `count` groups, at most kUnroll * kThreads: first all loads, which so
  /// are in flight together, then all stores. Sources are read once, so they give way first in the
  /// cache; targets stay, to be sent from there.
  template <int kUnroll, class Convert>
  static __device__ void copy(const char* source, char* target, int count, Convert& convert_one) {
    SourceWord words[kUnroll];
#pragma unroll
    for (int step = 0; step < kUnroll; ++step) {
      const int index = step * kThreads + static_cast<int>(threadIdx.x);
      if (index < count) {
        words[step] = __ldcs(reinterpret_cast<const SourceWord*>(source) + index);
      }
    }
#pragma unroll
    for (int step = 0; step < kUnroll; ++step) {
      const int index = step * kThreads + static_cast<int>(threadIdx.x);
      if (index < count) {
        reinterpret_cast<TargetWord*>(target)[index] = convert(words[step], convert_one);
      }
    }
  }

  static __device__ void fill_with_zeros(char* target, int count) {
    for (int index = static_cast<int>(threadIdx.x); index < count; index += kThreads) {
      reinterpret_cast<TargetWord*>(target)[index] = TargetWord{};
    }
  }
};

template <class Source, class Target, bool kChecked>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    copy_tile(const __grid_constant__ CopyLaunch launch, const CopyArithmetic arithmetic) {
  constexpr int kVector = vector_elements(sizeof(Source), sizeof(Target));
  constexpr int kElements = static_cast<int>(tile_elements(sizeof(Source), sizeof(Target)));
  using One = Group<Source, Target, 1>;
  using Vector = Group<Source, Target, kVector>;

  const CopyTile tile = tile_of<sizeof(Source), sizeof(Target)>(launch, blockIdx.x);
  const bool zeros = tile.source == nullptr;
  Converter<Source, Target, kChecked> convert_one(arithmetic);
  int head = vector_head<sizeof(Source), sizeof(Target)>(
      reinterpret_cast<std::uintptr_t>(tile.source), reinterpret_cast<std::uintptr_t>(tile.target));
  if (head < 0) {
    // Nowhere aligned on both sides: one by one, neighbouring threads at neighbouring elements.
    constexpr int kStep = 8 * kThreads;
    for (int first = 0; first < tile.elements; first += kStep) {
      One::template copy<8>(tile.source + first * sizeof(Source),
                            tile.target + first * sizeof(Target), tile.elements - first,
                            convert_one);
    }
    convert_one.tell(arithmetic.flag);
    return;
  }

  head = min(head, tile.elements);
  const int vectors = (tile.elements - head) / kVector;
  const int tail = head + vectors * kVector;
  const auto source_at = [&](int element) { return tile.source + element * sizeof(Source); };
  const auto target_at = [&](int element) { return tile.target + element * sizeof(Target); };
  if (zeros) {
    One::fill_with_zeros(tile.target, head);
    Vector::fill_with_zeros(target_at(head), vectors);
    One::fill_with_zeros(target_at(tail), tile.elements - tail);
    return;
  }
  Vector::template copy<kElements / kVector / kThreads>(source_at(head), target_at(head), vectors,
                                                        convert_one);
  // Each below kVector elements.
  One::template copy<1>(tile.source, tile.target, head, convert_one);
  One::template copy<1>(source_at(tail), target_at(tail), tile.elements - tail, convert_one);
  convert_one.tell(arithmetic.flag);
}

template <class Source, class Target>
CopyArithmetic arithmetic_of(const BatchedCopy& copy) {
  const double most = std::is_same_v<Wide<Source, Target>, double>
                          ? std::numeric_limits<double>::max()
                          : std::numeric_limits<float>::max();
  return {copy.scale, std::min(copy.limit, most), copy.flag};
}

template <class Source, class Target, bool kChecked>
cudaError_t copy_pieces(const BatchedCopy& copy, cudaStream_t stream) {
  const bool flag_aligned = reinterpret_cast<std::uintptr_t>(copy.flag) % sizeof(Target) == 0;
  if (!flag_aligned || !can_be_copied(copy.pieces, sizeof(Source), sizeof(Target))) {
    return cudaErrorInvalidValue;
  }
  CopyArithmetic arithmetic = arithmetic_of<Source, Target>(copy);
  CopyLaunch launch;
  for (std::span<const CopyPiece> rest = copy.pieces; !rest.empty();) {
    rest = fill_launch(rest, tile_elements(sizeof(Source), sizeof(Target)), launch);
    if (grid_size(launch) > 0) {
      // Its own result, not cudaGetLastError(), which may be an old error of the application's.
      void* arguments[] = {&launch, &arithmetic};
      const cudaError_t error = cudaLaunchKernel(copy_tile<Source, Target, kChecked>,
                                                 grid_size(launch), kThreads, arguments, 0, stream);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

template <class Source, class Target>
cudaError_t copy_numbers(const BatchedCopy& copy, cudaStream_t stream) {
  return copy.flag == nullptr ? copy_pieces<Source, Target, false>(copy, stream)
                              : copy_pieces<Source, Target, true>(copy, stream);
}

template <class Source>
cudaError_t convert_pieces(const BatchedCopy& copy, cudaStream_t stream) {
  switch (copy.target_type) {
    case DataType::float16:
      return copy_numbers<Source, __half>(copy, stream);
    case DataType::bfloat16:
      return copy_numbers<Source, __nv_bfloat16>(copy, stream);
    case DataType::float32:
      return copy_numbers<Source, float>(copy, stream);
    case DataType::float64:
      return copy_numbers<Source, double>(copy, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t copy_bits(const BatchedCopy& copy, cudaStream_t stream) {
  switch (size_of(copy.source_type)) {
    case 1:
      return copy_pieces<std::uint8_t, std::uint8_t, false>(copy, stream);
    case 2:
      return copy_pieces<std::uint16_t, std::uint16_t, false>(copy, stream);
    case 4:
      return copy_pieces<std::uint32_t, std::uint32_t, false>(copy, stream);
    case 8:
      return copy_pieces<std::uint64_t, std::uint64_t, false>(copy, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t batched_copy(const BatchedCopy& copy, cudaStream_t stream) {
  if (is_plain(copy)) {
    return copy_bits(copy, stream);
  }
  if (copy.source_type == DataType::uint8 && copy.target_type == DataType::boolean) {
    return copy.scale == 1.0 ? copy_pieces<std::uint8_t, bool, false>(copy, stream)
                             : cudaErrorInvalidValue;
  }
  switch (copy.source_type) {
    case DataType::float16:
      return convert_pieces<__half>(copy, stream);
    case DataType::bfloat16:
      return convert_pieces<__nv_bfloat16>(copy, stream);
    case DataType::float32:
      return convert_pieces<float>(copy, stream);
    case DataType::float64:
      return convert_pieces<double>(copy, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace hora::internal
