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
  std::int64_t tiles = 0;
  std::size_t taken = 0;
  launch.pieces = 0;
  launch.first_tile[0] = 0;
  for (; taken < pieces.size(); ++taken) {
    const CopyPiece& piece = pieces[taken];
    if (piece.elements == 0) {
      continue;
    }
    const std::int64_t own_tiles = (piece.elements - 1) / elements_per_tile + 1;
    if (launch.pieces == CopyLaunch::kCapacity || tiles + own_tiles > kMaximumTiles) {
      break;
    }
    tiles += own_tiles;
    const std::size_t index = launch.pieces++;
    launch.source[index] = piece.source;
    launch.target[index] = piece.target;
    launch.last_tile_elements[index] =
        static_cast<std::uint16_t>(piece.elements - (own_tiles - 1) * elements_per_tile);
    launch.first_tile[index + 1] = static_cast<std::uint32_t>(tiles);
  }
  return pieces.subspan(taken);
}

}  // namespace hora::internal
