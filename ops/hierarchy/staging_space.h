/// Where the staging of a cross group lies: memory to work in, and the arithmetic on it.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <span>

#include "core/plan/reduction.h"
#include "ops/hierarchy/completion.h"

namespace hora {

/// The host's memory, or a GPU's. Thread rule: the thread that holds the engine's lock.
class StagingSpace {
 public:
  virtual ~StagingSpace() = default;
  /// 64-byte aligned, not initialised. May wait for all that the device does: call it when no
  /// operation is under way. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  /// Starts output = the inputs taken together in their order, with the bits of ops/local's
  /// reduce(), of which one input without scale is a copy. The memory, not the list, is in use
  /// until completion; then it holds the result, ready to be read by MPI and by the device's
  /// streams.
  virtual Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                            std::byte* output, std::size_t count) = 0;
  /// Likewise starts output = the input's values in another floating-point type, with the bits of
  /// ops/local's convert(). The two do not overlap.
  virtual Completion convert(DataType source, const std::byte* input, DataType target,
                             std::byte* output, std::size_t count) = 0;
};

}  // namespace hora
