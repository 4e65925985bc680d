/// Pieces of a batched copy laid out in two blocks of memory, on the host and on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/cuda/functions.h"

namespace hora::internal::test {

/// Where one piece lies, in elements behind an address aligned to 256 bytes.
struct PieceShape {
  std::int64_t elements = 0;
  int source_shift = 0;
  int target_shift = 0;
  bool zeros = false;  ///< the source is null
};

/// Every combination of shifts up to `most_shift` for short pieces, and some for pieces around the
/// length of a tile (`tile`, in elements). Every seventh stands for zeros.
std::vector<PieceShape> piece_shapes(int most_shift, std::int64_t tile);

/// Puts a block of `size` bytes, `shift` bytes past an aligned address, behind the first `bytes`,
/// which become more: at least one byte stays free behind it. Returns its place.
std::size_t place(std::size_t& bytes, std::size_t size, std::size_t shift);

/// The pieces' places: bytes of both blocks, and each piece's offset in them. Bytes of the target
/// that no piece covers must stay as they are, so that a write beside a piece shows.
struct Arena {
  std::size_t source_bytes = 0;
  std::size_t target_bytes = 0;
  std::vector<std::size_t> source_offset;
  std::vector<std::size_t> target_offset;
};
Arena lay_out(const std::vector<PieceShape>& shapes, DataType source_type, DataType target_type);

/// The pieces of these shapes in these blocks.
std::vector<CopyPiece> pieces_in(const Arena& arena, const std::vector<PieceShape>& shapes,
                                 const std::byte* source, std::byte* target);

/// Fills with values of `type`: any bit pattern of 16-bit and integer types; of wider
/// floating-point types numbers whose product with a scale near 1 is exact or rounded once, between
/// 2^-40 and 2^40, and among them zeros, infinities and NaN.
void fill(std::vector<std::byte>& memory, DataType type, std::mt19937_64& random);

/// How far two values of a type are apart: 0 where their bits are the same or both are NaN, else
/// the number of values between them plus one (units in the last place; infinity follows the
/// largest number).
std::uint64_t distance(DataType type, const std::byte* a, const std::byte* b);

}  // namespace hora::internal::test
