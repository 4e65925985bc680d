#include "ops/local/kernels.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "ops/cuda/functions.h"
#include "tests/support/fake_gpu/batched_copy.h"
#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {
namespace {

struct KernelTexts {
  const char* call;
  const char* refused;
  const char* outside;
};

bool on_device(FakeMemory& memory, const std::vector<MemoryRange>& ranges) {
  return std::ranges::all_of(ranges, [&](const MemoryRange& range) {
    return memory.on_device(range.first, range.second);
  });
}

/// Enqueues `work`, which touches `ranges`: they must be on the device now, and when it runs.
template <class Work>
cudaError_t launch(FakeDevice& device, const KernelTexts& texts, bool is_valid,
                   const std::vector<MemoryRange>& ranges, cudaStream_t stream, Work work) {
  if (!device.is_current("a kernel was launched")) return cudaErrorInvalidResourceHandle;
  if (!is_valid) {
    device.violation(texts.refused);
    return cudaErrorInvalidValue;
  }
  if (!on_device(device.memory(), ranges)) {
    device.violation(texts.outside);
    return cudaErrorInvalidValue;
  }
  const auto checked = [&device, outside = texts.outside, ranges, work = std::move(work)] {
    if (on_device(device.memory(), ranges)) {
      work();
    } else {
      device.fault(outside);
    }
  };
  return device.enqueue(stream, device.script().delay_of(texts.call), checked,
                        device.memory().use(ranges));
}

/// True where there are inputs, not too many, and the memory is aligned to the elements.
bool takes(const DeviceReduction& reduction) {
  const auto aligned = [&](const std::byte* memory) {
    return memory != nullptr &&
           reinterpret_cast<std::uintptr_t>(memory) % size_of(reduction.type) == 0;
  };
  return reduction.op != ReduceOp::adasum && !reduction.inputs.empty() &&
         reduction.inputs.size() <= DeviceReduction::kMaximumInputs && reduction.count >= 0 &&
         aligned(reduction.output) && std::ranges::all_of(reduction.inputs, aligned);
}

/// As ops/cuda/functions.h says: it names the host's kernels as the model.
void perform(const DeviceReduction& reduction) {
  std::byte* const output = reduction.output;
  reduce(reduction.type, reduction.op, reduction.inputs, {&output, 1},
         static_cast<std::size_t>(reduction.count), {.post = reduction.scale});
}

std::size_t states_of(const BatchedUpdate& update) {
  if (const auto* sgd = std::get_if<SgdStep>(&update.step)) return sgd->momentum != 0 ? 1 : 0;
  return std::get<AdamStep>(update.step).amsgrad ? 3 : 2;
}

/// True where each piece has what the step needs, aligned, of a type that it takes.
bool takes(const BatchedUpdate& update) {
  if (update.type != DataType::float32 && update.type != DataType::float64) return false;
  const auto usable = [&](const void* memory) {
    return memory != nullptr &&
           reinterpret_cast<std::uintptr_t>(memory) % size_of(update.type) == 0;
  };
  return std::ranges::all_of(update.pieces, [&](const UpdatePiece& piece) {
    return piece.elements == 0 ||
           (piece.elements > 0 && usable(piece.parameter) && usable(piece.gradient) &&
            std::all_of(piece.state, piece.state + states_of(update), usable));
  });
}

void perform(const BatchedUpdate& update) {
  for (const UpdatePiece& piece : update.pieces) {
    const std::byte* const gradients[] = {static_cast<const std::byte*>(piece.gradient)};
    UpdateMemory memory{.parameter = static_cast<std::byte*>(piece.parameter),
                        .gradients = gradients};
    std::ranges::transform(piece.state, memory.state,
                           [](void* state) { return static_cast<std::byte*>(state); });
    std::visit(
        [&](const auto& step) {
          internal::update(update.type, step, memory, 0, static_cast<std::size_t>(piece.elements));
        },
        update.step);
  }
}

}  // namespace

cudaError_t copy_pieces(FakeDevice& device, const BatchedCopy& copy, cudaStream_t stream) {
  constexpr KernelTexts kTexts{"batched_copy",
                               "a batched copy of types or addresses that it does not take",
                               "a batched copy's piece is not in any block of device memory"};
  std::vector<CopyPiece> pieces(copy.pieces.begin(), copy.pieces.end());
  std::vector<MemoryRange> ranges = {{copy.flag, copy.flag ? size_of(copy.target_type) : 0}};
  for (const CopyPiece& piece : pieces) {
    const auto elements = static_cast<std::size_t>(piece.elements);
    ranges.emplace_back(piece.target, elements * size_of(copy.target_type));
    if (piece.source) ranges.emplace_back(piece.source, elements * size_of(copy.source_type));
  }
  const auto work = [given = copy, pieces = std::move(pieces)] {
    auto owned = given;
    owned.pieces = pieces;
    run(owned);
  };
  return launch(device, kTexts, valid(copy), ranges, stream, work);
}

cudaError_t reduce_memory(FakeDevice& device, const DeviceReduction& reduction,
                          cudaStream_t stream) {
  constexpr KernelTexts kTexts{"device_reduce",
                               "a reduction of inputs or addresses that it does not take",
                               "a reduction's memory is not in any block of device memory"};
  std::vector<const std::byte*> inputs(reduction.inputs.begin(), reduction.inputs.end());
  const std::size_t bytes = static_cast<std::size_t>(reduction.count) * size_of(reduction.type);
  std::vector<MemoryRange> ranges = {{reduction.output, bytes}};
  for (const std::byte* const input : inputs) ranges.emplace_back(input, bytes);
  const auto work = [given = reduction, inputs = std::move(inputs)] {
    auto owned = given;
    owned.inputs = inputs;
    perform(owned);
  };
  return launch(device, kTexts, takes(reduction), ranges, stream, work);
}

cudaError_t update_pieces(FakeDevice& device, const BatchedUpdate& update, cudaStream_t stream) {
  constexpr KernelTexts kTexts{"batched_update",
                               "an update of types or addresses that it does not take",
                               "an update's piece is not in any block of device memory"};
  std::vector<UpdatePiece> pieces(update.pieces.begin(), update.pieces.end());
  std::vector<MemoryRange> ranges;
  for (const UpdatePiece& piece : pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.elements) * size_of(update.type);
    ranges.emplace_back(piece.parameter, bytes);
    ranges.emplace_back(piece.gradient, bytes);
    for (const void* const state : piece.state) {
      if (state != nullptr) ranges.emplace_back(state, bytes);
    }
  }
  const auto work = [given = update, pieces = std::move(pieces)] {
    auto owned = given;
    owned.pieces = pieces;
    perform(owned);
  };
  return launch(device, kTexts, takes(update), ranges, stream, work);
}

}  // namespace hora::internal::test
