#include "tests/support/fake_gpu/batched_update.h"

#include <algorithm>
#include <iterator>

#include "ops/cuda/batched_update.h"
#include "ops/local/update.h"

namespace hora::internal::test {

bool valid(const BatchedUpdate& update) {
  if (update.type != DataType::float32 && update.type != DataType::float64) return false;
  const int states = std::visit([](const auto& step) { return states_of(step); }, update.step);
  return can_be_updated(update.pieces, size_of(update.type), states);
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
          internal::update(update.type, step, memory, static_cast<std::size_t>(piece.elements));
        },
        update.step);
  }
}

}  // namespace hora::internal::test
