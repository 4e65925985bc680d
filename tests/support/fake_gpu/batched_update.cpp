#include "tests/support/fake_gpu/batched_update.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "ops/local/kernels.h"

namespace hora::internal::test {

namespace {

std::size_t states_of(const BatchedUpdate& update) {
  if (const auto* sgd = std::get_if<SgdStep>(&update.step)) return sgd->momentum != 0 ? 1 : 0;
  return std::get<AdamStep>(update.step).amsgrad ? 3 : 2;
}

}  // namespace

bool valid(const BatchedUpdate& update) {
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

void run(const BatchedUpdate& update) {
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

}  // namespace hora::internal::test
