#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/fake_gpu/batched_copy.h"
#include "tests/support/fake_gpu/cuda_table.h"
#include "tests/support/fake_gpu/device_reduce.h"

namespace hora::internal::test {
namespace {

bool on_device(FakeMemory& memory, const BatchedCopy& copy) {
  for (const CopyPiece& piece : copy.pieces) {
    const auto elements = static_cast<std::size_t>(piece.elements);
    if (!memory.on_device(piece.target, elements * size_of(copy.target_type)) ||
        (piece.source != nullptr &&
         !memory.on_device(piece.source, elements * size_of(copy.source_type)))) {
      return false;
    }
  }
  return copy.flag == nullptr || memory.on_device(copy.flag, size_of(copy.target_type));
}

cudaError_t copy_pieces(FakeDevice& device, const BatchedCopy& copy, cudaStream_t stream) {
  constexpr auto kOutside = "a batched copy's piece is not in any block of device memory";
  if (!device.is_current("a kernel was launched")) return cudaErrorInvalidResourceHandle;
  if (!valid(copy)) {
    device.violation("a batched copy of types or addresses that it does not take");
    return cudaErrorInvalidValue;
  }
  if (!on_device(device.memory(), copy)) {
    device.violation(kOutside);
    return cudaErrorInvalidValue;
  }
  std::vector<CopyPiece> pieces(copy.pieces.begin(), copy.pieces.end());
  std::vector<MemoryRange> ranges = {{copy.flag, copy.flag ? size_of(copy.target_type) : 0}};
  for (const CopyPiece& piece : pieces) {
    const auto elements = static_cast<std::size_t>(piece.elements);
    ranges.emplace_back(piece.target, elements * size_of(copy.target_type));
    if (piece.source) ranges.emplace_back(piece.source, elements * size_of(copy.source_type));
  }
  const auto work = [&device, copy, pieces = std::move(pieces)] {
    BatchedCopy own = copy;
    own.pieces = pieces;
    if (on_device(device.memory(), own)) {
      run(own);
    } else {
      device.fault(kOutside);
    }
  };
  return device.enqueue(stream, device.script().delay_of("batched_copy"), work,
                        device.memory().use(ranges));
}

bool on_device(FakeMemory& memory, const DeviceReduction& reduction) {
  const std::size_t bytes = static_cast<std::size_t>(reduction.count) * size_of(reduction.type);
  return memory.on_device(reduction.output, bytes) &&
         std::ranges::all_of(reduction.inputs, [&](const std::byte* input) {
           return memory.on_device(input, bytes);
         });
}

cudaError_t reduce_memory(FakeDevice& device, const DeviceReduction& reduction,
                          cudaStream_t stream) {
  constexpr auto kOutside = "a reduction's memory is not in any block of device memory";
  if (!device.is_current("a kernel was launched")) return cudaErrorInvalidResourceHandle;
  if (!valid(reduction)) {
    device.violation("a reduction of inputs or addresses that it does not take");
    return cudaErrorInvalidValue;
  }
  if (!on_device(device.memory(), reduction)) {
    device.violation(kOutside);
    return cudaErrorInvalidValue;
  }
  std::vector<const std::byte*> inputs(reduction.inputs.begin(), reduction.inputs.end());
  const std::size_t bytes = static_cast<std::size_t>(reduction.count) * size_of(reduction.type);
  std::vector<MemoryRange> ranges = {{reduction.output, bytes}};
  for (const std::byte* const input : inputs) ranges.emplace_back(input, bytes);
  const auto work = [&device, reduction, inputs = std::move(inputs)] {
    DeviceReduction own = reduction;
    own.inputs = inputs;
    if (on_device(device.memory(), own)) {
      run(own);
    } else {
      device.fault(kOutside);
    }
  };
  return device.enqueue(stream, device.script().delay_of("device_reduce"), work,
                        device.memory().use(ranges));
}

}  // namespace

void add_kernels(CudaFunctions& table, FakeDevice& device) {
  table.batched_copy = [&device](const BatchedCopy& copy, cudaStream_t stream) {
    return made(device, "batched_copy", [&] { return copy_pieces(device, copy, stream); });
  };
  table.device_reduce = [&device](const DeviceReduction& reduction, cudaStream_t stream) {
    return made(device, "device_reduce", [&] { return reduce_memory(device, reduction, stream); });
  };
}

}  // namespace hora::internal::test
