#include <cstdint>
#include <cstring>
#include <variant>

#include "ops/cuda/element.cuh"
#include "ops/cuda/kernels.h"

namespace hora::internal {
namespace {

constexpr int kThreads = 256;

/// Every operation rounded once, never fused by the compiler.
__device__ float product(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ double product(double a, double b) {
  return __dmul_rn(a, b);
}
__device__ float sum(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ double sum(double a, double b) {
  return __dadd_rn(a, b);
}
__device__ float quotient(float a, float b) {
  return __fdiv_rn(a, b);
}
__device__ double quotient(double a, double b) {
  return __ddiv_rn(a, b);
}
__device__ float root(float value) {
  return __fsqrt_rn(value);
}
__device__ double root(double value) {
  return __dsqrt_rn(value);
}
__device__ float fused(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
__device__ double fused(double a, double b, double c) {
  return __fma_rn(a, b, c);
}

/// a * b + c.
template <class T>
__device__ T multiply_add(bool fuses, T a, T b, T c) {
  return fuses ? fused(a, b, c) : sum(product(a, b), c);
}

/// NaN where either is.
template <class T>
__device__ T larger(T a, T b) {
  return a != a ? a : a > b ? a : b;
}

/// SgdStep in the type of the elements.
template <class T>
struct Sgd {
  using Element = T;

  explicit Sgd(const SgdStep& step)
      : rate(static_cast<T>(-step.rate)),
        momentum(static_cast<T>(step.momentum)),
        brought(static_cast<T>(1 - step.dampening)),
        weight_decay(static_cast<T>(step.weight_decay)),
        decays(step.weight_decay != 0),
        nesterov(step.nesterov),
        first(step.first),
        fuses(step.rounding == Rounding::fused) {}

  /// The new parameter; `state` holds the new state afterwards.
  template <int kStates>
  __device__ T take(T parameter, T d, T (&state)[kStates > 0 ? kStates : 1]) const {
    if (decays) d = multiply_add(fuses, parameter, weight_decay, d);
    if constexpr (kStates > 0) {
      state[0] = first ? d : multiply_add(fuses, d, brought, product(state[0], momentum));
      d = nesterov ? multiply_add(fuses, state[0], momentum, d) : state[0];
    }
    return multiply_add(fuses, d, rate, parameter);
  }

  T rate, momentum, brought, weight_decay;
  bool decays, nesterov, first, fuses;
};

/// AdamStep in the type of the elements.
template <class T>
struct Adam {
  using Element = T;

  explicit Adam(const AdamStep& step)
      : rate(static_cast<T>(-step.rate)),
        root_of_correction(static_cast<T>(step.root)),
        beta1(static_cast<T>(step.beta1)),
        brought1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        brought2(static_cast<T>(1 - step.beta2)),
        epsilon(static_cast<T>(step.epsilon)),
        weight_decay(static_cast<T>(step.weight_decay)),
        decay(static_cast<T>(step.decay)),
        adds_decay(step.weight_decay != 0),
        decays(step.decay != 1),
        fuses(step.rounding == Rounding::fused),
        fuses_square(step.square_rounding == Rounding::fused) {}

  template <int kStates>
  __device__ T take(T parameter, T g, T (&state)[kStates]) const {
    if (decays) parameter = product(parameter, decay);
    if (adds_decay) g = multiply_add(fuses, parameter, weight_decay, g);
    state[0] = multiply_add(fuses, g, brought1, product(state[0], beta1));
    state[1] = multiply_add(fuses_square, product(brought2, g), g, product(state[1], beta2));
    T second = state[1];
    if constexpr (kStates == 3) second = state[2] = larger(state[1], state[2]);
    const T denominator = sum(quotient(root(second), root_of_correction), epsilon);
    return sum(parameter, quotient(product(rate, state[0]), denominator));
  }

  T rate, root_of_correction, beta1, brought1, beta2, brought2, epsilon, weight_decay, decay;
  bool adds_decay, decays, fuses, fuses_square;
};

/// Elements of one tile, by arrays: parameter, gradient, states.
template <class T, int kStates>
struct TileArrays {
  __device__ TileArrays(const UpdateLaunch& launch, const Tile& tile)
      : parameter(static_cast<T*>(launch.parameter[tile.piece]) + tile.first),
        gradient(static_cast<const T*>(launch.gradient[tile.piece]) + tile.first) {
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      state[s] = static_cast<T*>(launch.state[s][tile.piece]) + tile.first;
    }
  }

  __device__ bool aligned(int bytes) const {
    auto bits =
        reinterpret_cast<std::uintptr_t>(parameter) | reinterpret_cast<std::uintptr_t>(gradient);
#pragma unroll
    for (int s = 0; s < kStates; ++s) bits |= reinterpret_cast<std::uintptr_t>(state[s]);
    return bits % bytes == 0;
  }

  T* parameter;
  const T* gradient;
  T* state[kStates > 0 ? kStates : 1];
};

/// `kCount` neighbouring elements, by one load and one store of each array.
template <class Step, int kStates, int kCount>
__device__ void take_group(const Step& step,
                           const TileArrays<typename Step::Element, kStates>& arrays, int group) {
  using T = typename Step::Element;
  using Group = Word<kCount* static_cast<int>(sizeof(T))>;
  const auto load = [group](const void* array, T* values) {
    const Group word = static_cast<const Group*>(array)[group];
    std::memcpy(values, &word, sizeof word);
  };
  const auto store = [group](void* array, const T* values) {
    Group word;
    std::memcpy(&word, values, sizeof word);
    static_cast<Group*>(array)[group] = word;
  };
  constexpr int kRows = kStates > 0 ? kStates : 1;
  T parameter[kCount];
  T gradient[kCount];
  T state[kRows][kCount];
  load(arrays.parameter, parameter);
  load(arrays.gradient, gradient);
#pragma unroll
  for (int s = 0; s < kStates; ++s) load(arrays.state[s], state[s]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    T own[kRows];
#pragma unroll
    for (int s = 0; s < kStates; ++s) own[s] = state[s][i];
    parameter[i] = step.template take<kStates>(parameter[i], gradient[i], own);
#pragma unroll
    for (int s = 0; s < kStates; ++s) state[s][i] = own[s];
  }
  store(arrays.parameter, parameter);
#pragma unroll
  for (int s = 0; s < kStates; ++s) store(arrays.state[s], state[s]);
}

template <class Step, int kStates>
__global__ void __launch_bounds__(kThreads)
    update_tile(const __grid_constant__ UpdateLaunch launch, const Step step) {
  using T = typename Step::Element;
  constexpr int kElement = static_cast<int>(sizeof(T));
  constexpr int kVector = 16 / kElement;
  const Tile tile = tile_in(launch, blockIdx.x, kTileBytes / kElement);
  const TileArrays<T, kStates> arrays(launch, tile);
  int done = 0;
  if (arrays.aligned(16)) {
    const int vectors = tile.elements / kVector;
    for (int v = static_cast<int>(threadIdx.x); v < vectors; v += kThreads) {
      take_group<Step, kStates, kVector>(step, arrays, v);
    }
    done = vectors * kVector;
  }
  for (int i = done + static_cast<int>(threadIdx.x); i < tile.elements; i += kThreads) {
    take_group<Step, kStates, 1>(step, arrays, i);
  }
}

template <class Step, int kStates>
cudaError_t launch_all(Step step, const BatchedUpdate& update, cudaStream_t stream) {
  static_assert(sizeof(UpdateLaunch) + sizeof(Step) <= 4096, "no room in a kernel's parameters");
  constexpr std::size_t kElement = sizeof(typename Step::Element);
  if (!can_be_updated(update.pieces, kElement, kStates)) return cudaErrorInvalidValue;
  UpdateLaunch launch;
  for (std::span<const UpdatePiece> rest = update.pieces; !rest.empty();) {
    rest = fill_launch(rest, kElement, launch);
    if (grid_size(launch) == 0) continue;
    void* arguments[] = {&launch, &step};
    const cudaError_t error = cudaLaunchKernel(update_tile<Step, kStates>, grid_size(launch),
                                               kThreads, arguments, 0, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class T>
cudaError_t update_elements(const BatchedUpdate& update, cudaStream_t stream) {
  if (const auto* sgd = std::get_if<SgdStep>(&update.step)) {
    return states_of(*sgd) == 0 ? launch_all<Sgd<T>, 0>(Sgd<T>(*sgd), update, stream)
                                : launch_all<Sgd<T>, 1>(Sgd<T>(*sgd), update, stream);
  }
  const auto& adam = std::get<AdamStep>(update.step);
  return states_of(adam) == 2 ? launch_all<Adam<T>, 2>(Adam<T>(adam), update, stream)
                              : launch_all<Adam<T>, 3>(Adam<T>(adam), update, stream);
}

}  // namespace

cudaError_t batched_update(const BatchedUpdate& update, cudaStream_t stream) {
  if (update.type == DataType::float32) return update_elements<float>(update, stream);
  if (update.type == DataType::float64) return update_elements<double>(update, stream);
  return cudaErrorInvalidValue;
}

}  // namespace hora::internal
