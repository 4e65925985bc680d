/// An optimizer's step on a run of elements, in one pass over its memory.
#pragma once

#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>

#include "ops/local/update_values.h"

namespace hora::internal {

/// What update() reads and writes, each an array of as many elements.
struct UpdateMemory {
  std::byte* parameter = nullptr;
  const std::byte* gradient = nullptr;
  /// SGD: {momentum buffer}, or none without momentum. Adam: {average, square}, and {largest} with
  /// amsgrad.
  std::byte* state[3] = {};
};

/// One step of `count` elements of float32 or float64, aligned to their size, as SgdStep and
/// AdamStep say, each operation rounded to the type, and so is each factor. Every array is read
/// once and written once; they do not overlap. The bits do not depend on count, alignment or
/// instruction set. Throws Error(invalid_argument) for other types. Thread rule: any thread, of
/// elements that no other thread updates.
HORA_EXPORT void update(DataType type, const SgdStep& step, const UpdateMemory& memory,
                        std::size_t count);
HORA_EXPORT void update(DataType type, const AdamStep& step, const UpdateMemory& memory,
                        std::size_t count);

}  // namespace hora::internal
