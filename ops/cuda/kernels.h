/// The kernels behind CudaFunctions::batched_copy, batched_update and device_reduce, and how lists
/// of pieces become their launches: each piece is cut into tiles of a fixed number of elements, and
/// each block works on one tile, so a piece's tiles have all its alignment. Pure; the constexpr
/// functions are the kernels', too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cuda/functions.h"

namespace hora::internal {

/// Bytes of a full tile on the side of the largest element type. With 256 threads that are four
/// 16-byte loads of an array for each thread.
inline constexpr std::size_t kTileBytes = 16384;

/// As large as a grid can be.
inline constexpr std::int64_t kMaximumTiles = 0x7fffffff;

/// The pieces of one launch, as a part of the kernel's parameter.
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

/// The part of a piece that one block works on.
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

/// Elements of a full tile, a power of two of at most 16384.
constexpr std::int64_t tile_elements(std::size_t source_size, std::size_t target_size) {
  return static_cast<std::int64_t>(kTileBytes /
                                   (source_size > target_size ? source_size : target_size));
}

/// The pieces of one launch, as the kernel's parameter: no copy to the device goes before the
/// launch, and nothing must be kept until the kernel has run. Arrays of equal fields rather than an
/// array of pieces, so that 184 of them fit into the 4 KiB of parameters that every device takes.
struct CopyLaunch : PieceTiles<184> {
  const void* source[kCapacity];
  void* target[kCapacity];
};

/// Arithmetic of the kernel besides copying; see BatchedCopy.
struct CopyArithmetic {
  double scale;
  double limit;  ///< finite in the type of the product
  void* flag;
};
static_assert(sizeof(CopyLaunch) + sizeof(CopyArithmetic) <= 4096,
              "no room in a kernel's parameters");

/// True where every piece has elements >= 0 and not more than a grid's tiles hold, a target where
/// it is not empty, and addresses aligned to their element sizes.
bool can_be_copied(std::span<const CopyPiece> pieces, std::size_t source_size,
                   std::size_t target_size) noexcept;

/// Fills `launch` from the front of `pieces`, which fulfil can_be_copied(), and returns those that
/// did not fit. Empty pieces are left out.
std::span<const CopyPiece> fill_launch(std::span<const CopyPiece> pieces,
                                       std::int64_t elements_per_tile, CopyLaunch& launch) noexcept;

/// The part of a piece that one block copies.
struct CopyTile {
  const char* source;  ///< null: zeros
  char* target;
  std::int32_t elements;
};

/// Tile `number` of the launch, below grid_size(launch).
template <std::size_t kSourceSize, std::size_t kTargetSize>
constexpr CopyTile tile_of(const CopyLaunch& launch, std::uint32_t number) {
  const Tile tile = tile_in(launch, number, tile_elements(kSourceSize, kTargetSize));
  const char* source = static_cast<const char*>(launch.source[tile.piece]);
  return {source == nullptr ? nullptr : source + tile.first * std::int64_t{kSourceSize},
          static_cast<char*>(launch.target[tile.piece]) + tile.first * std::int64_t{kTargetSize},
          tile.elements};
}

/// Elements that one vector access moves: 16 bytes on the side of the larger type.
constexpr int vector_elements(std::size_t source_size, std::size_t target_size) {
  return static_cast<int>(16 / (source_size > target_size ? source_size : target_size));
}

/// Elements before the first at which source and target are both aligned for vectors, less than
/// vector_elements(); -1 where no element is. A null source is aligned everywhere.
template <std::size_t kSourceSize, std::size_t kTargetSize>
constexpr int vector_head(std::uintptr_t source, std::uintptr_t target) {
  constexpr int kVector = vector_elements(kSourceSize, kTargetSize);
  const int head = static_cast<int>(-(target / kTargetSize) % kVector);
  const bool common = source == 0 || static_cast<int>(-(source / kSourceSize) % kVector) == head;
  return common ? head : -1;
}

/// Launches `copy` on `stream`, one kernel for each 184 pieces that are not empty; nothing is
/// allocated, and the pieces may go once this returns. Returns the launch's error, perhaps of
/// earlier work, or cudaErrorInvalidValue for types that cannot be converted and pieces with a
/// negative count, no target or misaligned addresses.
///
/// Values that are scaled or converted are multiplied in float64 where one of the types is that,
/// else in float32, and rounded to nearest even; zeros that a null source stands for are not
/// multiplied. Any thread; the stream's device must be current.
cudaError_t batched_copy(const BatchedCopy& copy, cudaStream_t stream);

/// The pieces of one launch, as the kernel's parameter (see CopyLaunch).
struct UpdateLaunch : PieceTiles<80> {
  static constexpr int kStates = 3;

  void* parameter[kCapacity];
  const void* gradient[kCapacity];
  void* state[kStates][kCapacity];
};

/// How many states the step reads and writes.
int states_of(const SgdStep& step) noexcept;
int states_of(const AdamStep& step) noexcept;

/// True where every piece has elements >= 0 and not more than a grid's tiles hold, and where it is
/// not empty a parameter, a gradient and as many states as the step has, aligned to the element.
bool can_be_updated(std::span<const UpdatePiece> pieces, std::size_t element, int states) noexcept;

/// Fills `launch` from the front of `pieces`, which fulfil can_be_updated(), and returns those that
/// did not fit. Empty pieces are left out.
std::span<const UpdatePiece> fill_launch(std::span<const UpdatePiece> pieces, std::size_t element,
                                         UpdateLaunch& launch) noexcept;

/// Launches `update` on `stream`, one kernel for each 80 pieces that are not empty; nothing is
/// allocated, and `update` and its pieces may go once this returns. Returns the launch's error, or
/// cudaErrorInvalidValue for another type than float32 and float64 and where can_be_updated() is
/// false. Any thread; the stream's device must be current.
cudaError_t batched_update(const BatchedUpdate& update, cudaStream_t stream);

/// Launches `reduction` on `stream`, one kernel; nothing is allocated, and the list of inputs may
/// go once this returns. Returns the launch's error, or cudaErrorInvalidValue for no input, more
/// than kMaximumInputs, an unknown type or operation, a negative count, or null or misaligned
/// addresses. Any thread; the stream's device must be current.
cudaError_t device_reduce(const DeviceReduction& reduction, cudaStream_t stream);

}  // namespace hora::internal
