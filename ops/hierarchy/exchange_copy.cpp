#include "ops/hierarchy/exchange_copy.h"

#include <array>

#include "core/board/board.h"
#include "ops/local/kernels.h"

namespace hora {
namespace {

/// The piece of every local rank's input, summed.
void sum_piece(const BoundUnit& unit, const Piece& piece, double scale, std::byte* out) {
  std::array<const std::byte*, kMaxLocalSize> inputs;
  const auto count = static_cast<std::size_t>(unit.local_size);
  for (int r = 0; r < unit.local_size; ++r) {
    inputs[static_cast<std::size_t>(r)] = unit.tensor(0, r) + piece.source_offset;
  }
  const DataType type = unit.unit.type;
  reduce(type, unit.unit.op, {inputs.data(), count}, {&out, 1}, piece.range.bytes / size_of(type),
         {.pre = unit.unit.prescale, .post = scale});
}

void read_piece(const BoundUnit& unit, const Piece& piece, double scale, std::byte* out) {
  if (piece.source == Piece::kAll) {
    sum_piece(unit, piece, scale, out);
  } else {
    stream_copy(out, unit.tensor(0, piece.source) + piece.source_offset, piece.range.bytes);
  }
}

}  // namespace

void gather(const BoundUnit& unit, const Stream& stream, std::byte* out) {
  for (const Piece& piece : stream) read_piece(unit, piece, 1.0, out + piece.range.begin);
}

void scatter(const Stream& stream, int local_rank, const std::byte* in, std::byte* result) {
  for (const Piece& piece : stream) {
    if (piece.destination != local_rank && piece.destination != Piece::kAll) continue;
    stream_copy(result + piece.destination_offset, in + piece.range.begin, piece.range.bytes);
  }
}

void copy_to_result(const BoundUnit& unit, const Stream& stream, std::byte* result) {
  for (const Piece& piece : stream) {
    read_piece(unit, piece, unit.scale, result + piece.destination_offset);
  }
}

}  // namespace hora
