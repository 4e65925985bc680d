#include <algorithm>
#include <utility>
#include <vector>

#include "tests/support/fake_gpu/batched_copy.h"
#include "tests/support/fake_gpu/batched_update.h"
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

std::vector<MemoryRange> ranges_of(const BatchedUpdate& update) {
  std::vector<MemoryRange> ranges;
  for (const UpdatePiece& piece : update.pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.elements) * size_of(update.type);
    ranges.emplace_back(piece.parameter, bytes);
    ranges.emplace_back(piece.gradient, bytes);
    for (const void* const state : piece.state) {
      if (state != nullptr) ranges.emplace_back(state, bytes);
    }
  }
  return ranges;
}

bool on_device(FakeMemory& memory, const std::vector<MemoryRange>& ranges) {
  return std::ranges::all_of(ranges, [&](const MemoryRange& range) {
    return range.second == 0 || memory.on_device(range.first, range.second);
  });
}

cudaError_t update_pieces(FakeDevice& device, const BatchedUpdate& update, cudaStream_t stream) {
  constexpr auto kOutside = "an update's piece is not in any block of device memory";
  if (!device.is_current("a kernel was launched")) return cudaErrorInvalidResourceHandle;
  if (!valid(update)) {
    device.violation("an update of types or addresses that it does not take");
    return cudaErrorInvalidValue;
  }
  std::vector<MemoryRange> ranges = ranges_of(update);
  if (!on_device(device.memory(), ranges)) {
    device.violation(kOutside);
    return cudaErrorInvalidValue;
  }
  std::vector<UpdatePiece> pieces(update.pieces.begin(), update.pieces.end());
  const auto work = [&device, update, ranges, pieces = std::move(pieces)] {
    BatchedUpdate own = update;
    own.pieces = pieces;
    if (on_device(device.memory(), ranges)) {
      run(own);
    } else {
      device.fault(kOutside);
    }
  };
  return device.enqueue(stream, device.script().delay_of("batched_update"), work,
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
  table.batched_update = [&device](const BatchedUpdate& update, cudaStream_t stream) {
    return made(device, "batched_update", [&] { return update_pieces(device, update, stream); });
  };
}

}  // namespace hora::internal::test
