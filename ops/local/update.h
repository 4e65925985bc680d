/// An optimizer's step on a run of elements, in one pass over its memory.
#pragma once

#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>
#include <span>

#include "ops/local/kernel_table.h"
#include "ops/local/update_table.h"

namespace hora::internal {

/// The arrays that update() reads and writes, each of as many elements.
struct UpdateMemory {
  std::byte* parameter = nullptr;
  /// At least one. The step's gradient is their sum, in their order, with the bits that reduce()
  /// would give.
  std::span<const std::byte* const> gradients = {};
  Scales scales = {};
  /// SGD: {momentum buffer}, or none without momentum. Adam: {average, square}, and {largest} with
  /// amsgrad.
  std::byte* state[3] = {};
  /// Where the new parameter is written as well: other ranks' memory, past this core's cache.
  std::span<std::byte* const> copies = {};
};

/// One step of elements [begin, end) of the arrays, of float32 or float64, aligned to their size,
/// as SgdStep and AdamStep say, each operation rounded to the type, and so is each factor. Every
/// array is read once and written once; they do not overlap. The bits do not depend on the range,
/// alignment or instruction set. Copies are complete (fenced) when it returns. Throws
/// Error(invalid_argument) for other types and for no gradient. Thread rule: any thread, of
/// elements that no other thread updates.
HORA_EXPORT void update(DataType type, const SgdStep& step, const UpdateMemory& memory,
                        std::size_t begin, std::size_t end);
HORA_EXPORT void update(DataType type, const AdamStep& step, const UpdateMemory& memory,
                        std::size_t begin, std::size_t end);

}  // namespace hora::internal
