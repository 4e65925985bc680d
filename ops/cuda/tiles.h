/// How pieces of memory of any lengths become blocks of a kernel that are equally long: each piece
/// is cut into tiles of a fixed number of elements, and each block works on one tile. So a piece's
/// tiles have all the alignment of the piece itself. Pure; the constexpr functions are the
/// kernels', too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hora::internal {

/// Bytes of a full tile on the side of the largest element type. With 256 threads that are four
/// 16-byte loads of an array for each thread.
inline constexpr std::size_t kTileBytes = 16384;

/// As large as a grid can be.
inline constexpr std::int64_t kMaximumTiles = 0x7fffffff;

/// Of the pieces of one launch, as a part of the kernel's parameter.
template <std::size_t kPieces>
struct PieceTiles {
  static constexpr std::size_t kCapacity = kPieces;

  /// Number of the piece's first tile in this launch; after the last piece the number of tiles.
  std::uint32_t first_tile[kCapacity + 1] = {};
  std::uint16_t last_tile_elements[kCapacity];  ///< at least 1
  std::uint16_t pieces = 0;

  /// False where the launch is full. `elements` > 0, at most kMaximumTiles tiles.
  bool add(std::int64_t elements, std::int64_t elements_per_tile) {
    const std::int64_t tiles = (elements - 1) / elements_per_tile + 1;
    if (pieces == kCapacity || first_tile[pieces] + tiles > kMaximumTiles) return false;
    last_tile_elements[pieces] =
        static_cast<std::uint16_t>(elements - (tiles - 1) * elements_per_tile);
    first_tile[pieces + 1] = static_cast<std::uint32_t>(first_tile[pieces] + tiles);
    ++pieces;
    return true;
  }
};

/// Blocks of the launch: 0 where there is nothing to do.
template <std::size_t kPieces>
constexpr std::uint32_t grid_size(const PieceTiles<kPieces>& launch) {
  return launch.first_tile[launch.pieces];
}

/// Adds pieces from the front of `pieces` to the emptied `launch`, `put(index, piece)` storing each
/// one's memory, and returns those that did not fit. Empty pieces are left out.
template <class Launch, class Piece, class Put>
std::span<const Piece> fill_tiles(Launch& launch, std::span<const Piece> pieces,
                                  std::int64_t elements_per_tile, Put put) {
  static_cast<PieceTiles<Launch::kCapacity>&>(launch) = {};
  std::size_t taken = 0;
  for (; taken < pieces.size(); ++taken) {
    const Piece& piece = pieces[taken];
    if (piece.elements == 0) continue;
    if (!launch.add(piece.elements, elements_per_tile)) break;
    put(launch.pieces - 1U, piece);
  }
  return pieces.subspan(taken);
}

/// What one block works on.
struct Tile {
  std::uint32_t piece;
  std::int64_t first;  ///< element of the piece
  std::int32_t elements;
};

/// Tile `number` of the launch, below grid_size(launch), found by bisection.
template <std::size_t kPieces>
constexpr Tile tile_in(const PieceTiles<kPieces>& launch, std::uint32_t number,
                       std::int64_t elements_per_tile) {
  std::uint32_t piece = 0;
  std::uint32_t end = launch.pieces;
  while (end - piece > 1) {
    const std::uint32_t middle = (piece + end) / 2;
    (launch.first_tile[middle] <= number ? piece : end) = middle;
  }
  const bool last = number + 1 == launch.first_tile[piece + 1];
  return {piece, (number - launch.first_tile[piece]) * elements_per_tile,
          last ? launch.last_tile_elements[piece] : static_cast<std::int32_t>(elements_per_tile)};
}

}  // namespace hora::internal
