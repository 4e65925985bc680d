#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cuda/element.cuh"
#include "ops/cuda/kernels.h"

namespace hora::internal {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 1 << 16;  ///< longer reductions go on by strides
/// Loads of a thread that are in flight at once, before their sums.
constexpr int kInputsAtOnce = 4;

/// The inputs, as the kernel's parameter: nothing must be kept until the kernel has run.
struct ReduceLaunch {
  const void* inputs[DeviceReduction::kMaximumInputs];
  void* output;
  std::int64_t count;
  double scale;
  std::int32_t input_count;
};
static_assert(sizeof(ReduceLaunch) <= 4096, "no room in a kernel's parameters");

/// `kCount` neighbouring elements of each input, by one load each. Their sum begins with the first
/// input and takes the others in order, several loads ahead of the additions.
template <class T, class Operation, int kCount>
struct Group {
  using Type = Word<kCount* static_cast<int>(sizeof(T))>;
  using Value = typename Arithmetic<T>::Value;

  static __device__ Type load(const void* input, std::int64_t index) {
    return __ldcs(static_cast<const Type*>(input) + index);
  }
  static __device__ void unpack(const Type& word, Value* values) {
    T stored[kCount];
    std::memcpy(stored, &word, sizeof(word));
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = Arithmetic<T>::load(stored[i]);
  }
  static __device__ void add(const Type& word, Value* sums) {
    Value values[kCount];
    unpack(word, values);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] = Operation::combine(sums[i], values[i]);
  }
  static __device__ void reduce(const ReduceLaunch& launch, std::int64_t index) {
    Value sums[kCount];
    unpack(load(launch.inputs[0], index), sums);
    int input = 1;
    for (; input + kInputsAtOnce <= launch.input_count; input += kInputsAtOnce) {
      Type words[kInputsAtOnce];
#pragma unroll
      for (int k = 0; k < kInputsAtOnce; ++k) words[k] = load(launch.inputs[input + k], index);
#pragma unroll
      for (int k = 0; k < kInputsAtOnce; ++k) add(words[k], sums);
    }
    for (; input < launch.input_count; ++input) add(load(launch.inputs[input], index), sums);

    T results[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      results[i] = Arithmetic<T>::store(Arithmetic<T>::scaled(sums[i], launch.scale));
    }
    Type result;
    std::memcpy(&result, results, sizeof(result));
    static_cast<Type*>(launch.output)[index] = result;
  }
};

/// Groups of kCount elements, then the rest one by one.
template <class T, class Operation, int kCount>
__global__ void __launch_bounds__(kThreads)
    reduce_groups(const __grid_constant__ ReduceLaunch launch) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  const std::int64_t groups = launch.count / kCount;
  for (std::int64_t i = first; i < groups; i += stride) {
    Group<T, Operation, kCount>::reduce(launch, i);
  }
  for (std::int64_t i = groups * kCount + first; i < launch.count; i += stride) {
    Group<T, Operation, 1>::reduce(launch, i);
  }
}

template <class T, class Operation, int kCount>
cudaError_t launch_groups(ReduceLaunch& launch, cudaStream_t stream) {
  const std::int64_t groups = std::max<std::int64_t>(launch.count / kCount, 1);
  const std::int64_t blocks = std::min((groups - 1) / kThreads + 1, kMostBlocks);
  void* arguments[] = {&launch};
  return cudaLaunchKernel(reduce_groups<T, Operation, kCount>, static_cast<unsigned>(blocks),
                          kThreads, arguments, 0, stream);
}

bool aligned(const DeviceReduction& reduction, std::size_t size) {
  const auto is_aligned = [size](const void* address) {
    return address != nullptr && reinterpret_cast<std::uintptr_t>(address) % size == 0;
  };
  return is_aligned(reduction.output) && std::ranges::all_of(reduction.inputs, is_aligned);
}

template <class T, class Operation>
cudaError_t reduce_elements(const DeviceReduction& reduction, cudaStream_t stream) {
  if (!aligned(reduction, sizeof(T))) return cudaErrorInvalidValue;
  ReduceLaunch launch;
  std::ranges::copy(reduction.inputs, launch.inputs);
  launch.output = reduction.output;
  launch.count = reduction.count;
  launch.scale = reduction.scale;
  launch.input_count = static_cast<std::int32_t>(reduction.inputs.size());
  constexpr int kVectorBytes = 16;
  return aligned(reduction, kVectorBytes)
             ? launch_groups<T, Operation, kVectorBytes / static_cast<int>(sizeof(T))>(launch,
                                                                                       stream)
             : launch_groups<T, Operation, 1>(launch, stream);
}

template <class Operation, class Signed>
using Integer = typename Operation::template Integer<Signed>;

/// In the order of DataType.
template <class Operation>
cudaError_t reduce_by(const DeviceReduction& reduction, cudaStream_t stream) {
  switch (reduction.type) {
    case DataType::float16:
      return reduce_elements<__half, Operation>(reduction, stream);
    case DataType::bfloat16:
      return reduce_elements<__nv_bfloat16, Operation>(reduction, stream);
    case DataType::float32:
      return reduce_elements<float, Operation>(reduction, stream);
    case DataType::float64:
      return reduce_elements<double, Operation>(reduction, stream);
    case DataType::int32:
      return reduce_elements<Integer<Operation, std::int32_t>, Operation>(reduction, stream);
    case DataType::int64:
      return reduce_elements<Integer<Operation, std::int64_t>, Operation>(reduction, stream);
    case DataType::uint8:
      return reduce_elements<std::uint8_t, Operation>(reduction, stream);
    case DataType::int8:
      return reduce_elements<Integer<Operation, std::int8_t>, Operation>(reduction, stream);
    case DataType::int16:
      return reduce_elements<Integer<Operation, std::int16_t>, Operation>(reduction, stream);
    case DataType::boolean:
      return reduce_elements<Truth, typename Operation::OfTruth>(reduction, stream);
    case DataType::uint16:
      return reduce_elements<std::uint16_t, Operation>(reduction, stream);
    case DataType::uint32:
      return reduce_elements<std::uint32_t, Operation>(reduction, stream);
    case DataType::uint64:
      return reduce_elements<std::uint64_t, Operation>(reduction, stream);
  }
  return cudaErrorInvalidValue;
}

bool is_copy(const DeviceReduction& reduction) {
  return reduction.inputs.size() == 1 && reduction.type != DataType::boolean &&
         (reduction.scale == 1.0 || !is_floating_point(reduction.type));
}

}  // namespace

cudaError_t device_reduce(const DeviceReduction& reduction, cudaStream_t stream) {
  if (reduction.inputs.empty() || reduction.inputs.size() > DeviceReduction::kMaximumInputs ||
      reduction.count < 0) {
    return cudaErrorInvalidValue;
  }
  if (reduction.count == 0) return cudaSuccess;
  if (is_copy(reduction)) {
    if (reduction.output == reduction.inputs[0]) return cudaSuccess;
    return cudaMemcpyAsync(reduction.output, reduction.inputs[0],
                           static_cast<std::size_t>(reduction.count) * size_of(reduction.type),
                           cudaMemcpyDeviceToDevice, stream);
  }
  switch (reduction.op) {
    case ReduceOp::sum:
    case ReduceOp::average:
      return reduce_by<Sum>(reduction, stream);
    case ReduceOp::min:
      return reduce_by<Minimum>(reduction, stream);
    case ReduceOp::max:
      return reduce_by<Maximum>(reduction, stream);
    case ReduceOp::product:
      return reduce_by<Product>(reduction, stream);
    case ReduceOp::adasum:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace hora::internal
