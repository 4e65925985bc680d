/// The kernel behind CudaFunctions::batched_update, and how a list of UpdatePiece becomes its
/// launches.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cuda/functions.h"
#include "ops/cuda/tiles.h"

namespace hora::internal {

/// The pieces of one launch, as the kernel's parameter (see CopyLaunch).
struct UpdateLaunch : PieceTiles<80> {
  static constexpr int kStates = 3;

  void* parameter[kCapacity];
  const void* gradient[kCapacity];
  void* state[kStates][kCapacity];
};

/// How many states the step reads and writes.
int states_of(const SgdStep& step) noexcept;
int states_of(const AdamStep& step) noexcept;

/// True where every piece has elements >= 0 and not more than a grid's tiles hold, and where it is
/// not empty a parameter, a gradient and as many states as the step has, aligned to the element.
bool can_be_updated(std::span<const UpdatePiece> pieces, std::size_t element, int states) noexcept;

/// Fills `launch` from the front of `pieces`, which fulfil can_be_updated(), and returns those that
/// did not fit. Empty pieces are left out.
std::span<const UpdatePiece> fill_launch(std::span<const UpdatePiece> pieces, std::size_t element,
                                         UpdateLaunch& launch) noexcept;

/// Launches `update` on `stream`, one kernel for each 80 pieces that are not empty; nothing is
/// allocated, and `update` and its pieces may go once this returns. Returns the launch's error, or
/// cudaErrorInvalidValue for another type than float32 and float64 and where can_be_updated() is
/// false. Any thread; the stream's device must be current.
cudaError_t batched_update(const BatchedUpdate& update, cudaStream_t stream);

}  // namespace hora::internal
