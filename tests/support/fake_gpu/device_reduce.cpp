#include "tests/support/fake_gpu/device_reduce.h"

#include <algorithm>
#include <cstdint>

#include "ops/local/kernels.h"

namespace hora::internal::test {

bool valid(const DeviceReduction& reduction) {
  const auto aligned = [&](const std::byte* memory) {
    return memory != nullptr &&
           reinterpret_cast<std::uintptr_t>(memory) % size_of(reduction.type) == 0;
  };
  return reduction.op != ReduceOp::adasum && !reduction.inputs.empty() &&
         reduction.inputs.size() <= DeviceReduction::kMaximumInputs && reduction.count >= 0 &&
         aligned(reduction.output) && std::ranges::all_of(reduction.inputs, aligned);
}

void run(const DeviceReduction& reduction) {
  std::byte* const output = reduction.output;
  reduce(reduction.type, reduction.op, reduction.inputs, {&output, 1},
         static_cast<std::size_t>(reduction.count), {.post = reduction.scale});
}

}  // namespace hora::internal::test
