#include "ops/cuda/kernels.h"

#include <algorithm>

namespace hora::internal {
namespace {

bool aligned(const void* pointer, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(pointer) % size == 0;
}

std::int64_t tile_elements(std::size_t element) {
  return static_cast<std::int64_t>(kTileBytes / element);
}

bool usable(const void* memory, std::size_t element) {
  return memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % element == 0;
}

}  // namespace

bool can_be_copied(std::span<const CopyPiece> pieces, std::size_t source_size,
                   std::size_t target_size) noexcept {
  const std::int64_t most = kMaximumTiles * tile_elements(source_size, target_size);
  return std::ranges::all_of(pieces, [&](const CopyPiece& piece) {
    return piece.elements == 0 ||
           (piece.elements > 0 && piece.elements <= most && piece.target != nullptr &&
            aligned(piece.source, source_size) && aligned(piece.target, target_size));
  });
}

std::span<const CopyPiece> fill_launch(std::span<const CopyPiece> pieces,
                                       std::int64_t elements_per_tile,
                                       CopyLaunch& launch) noexcept {
  return fill_tiles(launch, pieces, elements_per_tile,
                    [&](std::size_t index, const CopyPiece& piece) {
                      launch.source[index] = piece.source;
                      launch.target[index] = piece.target;
                    });
}

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
  return fill_tiles(launch, pieces, tile_elements(element),
                    [&](std::size_t index, const UpdatePiece& piece) {
                      launch.parameter[index] = piece.parameter;
                      launch.gradient[index] = piece.gradient;
                      for (int s = 0; s < UpdateLaunch::kStates; ++s) {
                        launch.state[s][index] = piece.state[s];
                      }
                    });
}

}  // namespace hora::internal
