/// The kernel behind CudaFunctions::batched_copy.
///
/// How a list of CopyPiece becomes kernel launches: pure functions, of which the kernel uses the
/// constexpr ones on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cuda/functions.h"
#include "ops/cuda/tiles.h"

namespace hora::internal {

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

/// What the kernel does besides copying; see BatchedCopy.
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

/// What one block copies.
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
/// allocated, and `copy` and its pieces may go once this returns. Returns the launch's error, which
/// may be that of earlier work (cudaGetLastError), or cudaErrorInvalidValue where types cannot be
/// converted, a piece has a negative count, no target, or addresses not aligned to its types, or
/// the flag is not aligned to the target's type.
///
/// Values that are scaled or converted are multiplied in float64 where one of the types is float64,
/// else in float32, and then rounded to the target's type, to nearest even. Zeros that a null
/// source stands for are not multiplied. Any thread; the stream's device must be current.
cudaError_t batched_copy(const BatchedCopy& copy, cudaStream_t stream);

}  // namespace hora::internal
