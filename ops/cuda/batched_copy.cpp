#include "ops/cuda/batched_copy.h"

#include <algorithm>

namespace hora::internal {
namespace {

bool aligned(const void* pointer, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(pointer) % size == 0;
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

}  // namespace hora::internal
