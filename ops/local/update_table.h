/// The update kernels as compiled for one instruction set. Internal to ops/local and its tests.
/// Included by sources with instruction-set flags: no inline functions (see kernel_table.h).
#pragma once

#include <cstddef>

#include "ops/local/kernel_values.h"
#include "ops/local/update_values.h"

namespace hora::internal {

/// UpdateMemory without the standard library's types.
struct UpdateArrays {
  std::byte* parameter = nullptr;
  const std::byte* const* gradients = nullptr;
  std::size_t gradient_count = 0;
  Scales scales;
  std::byte* state[3] = {};
  std::byte* const* copies = nullptr;
  std::size_t copy_count = 0;
  bool streams = false;  ///< copies are written past the cache, where their alignment allows it
};

/// hora::update.
using SgdKernel = void (*)(const SgdStep& step, const UpdateArrays& arrays, std::size_t begin,
                           std::size_t end);
using AdamKernel = void (*)(const AdamStep& step, const UpdateArrays& arrays, std::size_t begin,
                            std::size_t end);

struct UpdateTable {
  const char* instruction_set;
  SgdKernel sgd[2];    ///< of float32, float64
  AdamKernel adam[2];  ///< likewise
};

extern const UpdateTable kBaselineUpdates;
extern const UpdateTable kAvx2Updates;
extern const UpdateTable kAvx512Updates;

/// Tables that this CPU can run, the best first, ended by a null pointer.
const UpdateTable* const* runnable_updates() noexcept;

}  // namespace hora::internal
