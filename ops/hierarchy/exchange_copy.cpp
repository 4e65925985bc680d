#include "ops/hierarchy/exchange_copy.h"

#include <array>
#include <cstring>

#include "core/board/board.h"
#include "ops/local/kernels.h"

namespace hora {
namespace {

/// Results from here on gain by non-temporal stores (bench/results).
constexpr std::size_t kStreamedResult = std::size_t{8} << 20;

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

const std::byte* source_of(const BoundUnit& unit, const Piece& piece) {
  return unit.tensor(0, piece.source) + piece.source_offset;
}

}  // namespace

void ExchangeTarget::copy(std::size_t offset, const std::byte* in, std::size_t bytes) const {
  if (data_ + offset == in) return;
  if (bytes_ >= kStreamedResult) {
    stream_copy(data_ + offset, in, bytes);
  } else {
    std::memcpy(data_ + offset, in, bytes);
  }
}

void gather(const BoundUnit& unit, const Stream& stream, std::byte* out) {
  for (const Piece& piece : stream) {
    if (piece.source == Piece::kAll) {
      sum_piece(unit, piece, 1.0, out + piece.range.begin);
    } else {
      std::memcpy(out + piece.range.begin, source_of(unit, piece), piece.range.bytes);
    }
  }
}

void scatter(const Stream& stream, int local_rank, const std::byte* in,
             const ExchangeTarget& result) {
  for (const Piece& piece : stream) {
    if (piece.destination != local_rank && piece.destination != Piece::kAll) continue;
    result.copy(piece.destination_offset, in + piece.range.begin, piece.range.bytes);
  }
}

void copy_to_result(const BoundUnit& unit, const Stream& stream, int local_rank,
                    const ExchangeTarget& result) {
  for (const Piece& piece : stream) {
    if (piece.destination != local_rank && piece.destination != Piece::kAll) continue;
    if (piece.source == Piece::kAll) {
      sum_piece(unit, piece, unit.scale, result.at(piece.destination_offset));
    } else {
      result.copy(piece.destination_offset, source_of(unit, piece), piece.range.bytes);
    }
  }
}

}  // namespace hora
