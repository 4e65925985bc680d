/// hora's types and reductions as NCCL's, and the preparation of tensors for it.
///
/// What a rank that has joined contributes to the reductions of others.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "core/engine/interfaces.h"
#include "core/plan/plan.h"
#include "ops/cuda/functions.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/functions.h"

namespace hora::internal {

/// Blocks of identity elements (fill_identity in ops/local/kernels.h) on the GPU, from which memory
/// is filled. The first use of each type and operation blocks the host for a copy of a few KiB.
/// Thread rule: the thread that holds the engine's lock.
class IdentityElements {
 public:
  /// References outlive it.
  IdentityElements(const CudaFunctions& cuda, const CudaStream& stream, DeviceHeap& heap)
      : cuda_(cuda), stream_(stream), heap_(heap) {}

  /// Fills `count` elements in the order of the stream. Throws Error(out_of_memory).
  void fill(DataType type, ReduceOp op, std::byte* target, std::size_t count);

 private:
  const std::byte* block(DataType type, ReduceOp op);

  const CudaFunctions& cuda_;
  const CudaStream& stream_;
  DeviceHeap& heap_;
  std::map<std::pair<DataType, ReduceOp>, std::shared_ptr<std::byte>> blocks_;
};

/// Booleans are uint8 with the values 0 and 1. Throws Error(invalid_argument) for int16 and
/// uint16, which NCCL does not have, and for an unknown type.
ncclDataType_t to_nccl(DataType type);
/// A type of the same size, whatever the type: for values that are only copied.
ncclDataType_t travelling_type(DataType type);

/// Of booleans, which are 0 or 1 then: maximum for sum and max, minimum for product and min. An
/// average is NCCL's own. Throws Error(invalid_argument) for Adasum.
ncclRedOp_t to_nccl(ReduceOp op, DataType type);

/// An average of which NCCL's symmetric kernels (NcclBuffers) have the sum alone: in windows it is
/// to be a sum of values that are scaled before, as NCCL scales them for its other kernels.
bool sums_scaled_in_windows(const Unit& unit);
/// NCCL would misinterpret the values: they are scaled (Unit::prescale), or booleans, of which
/// every byte but 0 is true.
bool needs_preparation(const Unit& unit);
/// The copy that prepares such values, without its pieces; a plain one where nothing is needed.
BatchedCopy preparation(const Unit& unit);

}  // namespace hora::internal
