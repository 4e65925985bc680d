#include "ops/cuda/batched_update.h"

#include <algorithm>

namespace hora::internal {
namespace {

std::int64_t tile_elements(std::size_t element) {
  return static_cast<std::int64_t>(kTileBytes / element);
}

bool usable(const void* memory, std::size_t element) {
  return memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % element == 0;
}

}  // namespace

int states_of(const SgdStep& step) noexcept {
  return step.momentum != 0 ? 1 : 0;
}

int states_of(const AdamStep& step) noexcept {
  return step.amsgrad ? 3 : 2;
}

bool can_be_updated(std::span<const UpdatePiece> pieces, std::size_t element, int states) noexcept {
  const std::int64_t most = kMaximumTiles * tile_elements(element);
  return std::ranges::all_of(pieces, [&](const UpdatePiece& piece) {
    if (piece.elements == 0) return true;
    return piece.elements > 0 && piece.elements <= most && usable(piece.parameter, element) &&
           usable(piece.gradient, element) &&
           std::all_of(piece.state, piece.state + states,
                       [&](const void* state) { return usable(state, element); });
  });
}

std::span<const UpdatePiece> fill_launch(std::span<const UpdatePiece> pieces, std::size_t element,
                                         UpdateLaunch& launch) noexcept {
  std::size_t taken = 0;
  static_cast<PieceTiles<UpdateLaunch::kCapacity>&>(launch) = {};
  for (; taken < pieces.size(); ++taken) {
    const UpdatePiece& piece = pieces[taken];
    if (piece.elements == 0) continue;
    if (!launch.add(piece.elements, tile_elements(element))) break;
    const std::size_t index = launch.pieces - 1U;
    launch.parameter[index] = piece.parameter;
    launch.gradient[index] = piece.gradient;
    for (int s = 0; s < UpdateLaunch::kStates; ++s) launch.state[s][index] = piece.state[s];
  }
  return pieces.subspan(taken);
}

}  // namespace hora::internal
