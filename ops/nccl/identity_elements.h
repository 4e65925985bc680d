/// What a rank that has joined contributes to the reductions of others.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "core/engine/device.h"
#include "ops/cuda/stream.h"

namespace hora {

/// Blocks of identity elements (ops/local/identity_element.h) on the GPU, from which memory is
/// filled. The first use of each type and operation blocks the host for a copy of a few KiB. Thread
/// rule: the thread that holds the engine's lock.
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

}  // namespace hora
