#include "ops/hierarchy/exchange_memory.h"

#include <array>
#include <cstring>
#include <utility>

#include "core/control_block/node_control_block.h"
#include "ops/local/kernels.h"

namespace hora {

std::byte* GrowingBlock::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    // First, so that both never exist at once.
    if (block_.data) memory_.release(std::exchange(block_, {}).data);
    bytes_ = 0;
    block_ = memory_.allocate(bytes);
    bytes_ = bytes;
  }
  return block_.data;
}

namespace {

/// Results from here on gain by non-temporal stores (bench/results).
constexpr std::size_t kStreamedResult = std::size_t{8} << 20;

/// The transfer of every local rank's input, summed.
void sum_transfer(const BoundUnit& unit, const Transfer& transfer, double scale, std::byte* out) {
  std::array<const std::byte*, kMaxLocalSize> inputs;
  const auto count = static_cast<std::size_t>(unit.local_size);
  for (int r = 0; r < unit.local_size; ++r) {
    inputs[static_cast<std::size_t>(r)] = unit.tensor(0, r) + transfer.source_offset;
  }
  const DataType type = unit.unit.type;
  reduce(type, unit.unit.op, {inputs.data(), count}, {&out, 1},
         transfer.range.bytes / size_of(type), {.pre = unit.unit.prescale, .post = scale});
}

const std::byte* source_of(const BoundUnit& unit, const Transfer& transfer) {
  return unit.tensor(0, transfer.source) + transfer.source_offset;
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

void gather(const BoundUnit& unit, const ByteLayout& layout, std::byte* out) {
  for (const Transfer& transfer : layout) {
    if (transfer.source == Transfer::kAll) {
      sum_transfer(unit, transfer, 1.0, out + transfer.range.begin);
    } else {
      std::memcpy(out + transfer.range.begin, source_of(unit, transfer), transfer.range.bytes);
    }
  }
}

void scatter(const ByteLayout& layout, int local_rank, const std::byte* in,
             const ExchangeTarget& result) {
  for (const Transfer& transfer : layout) {
    if (transfer.destination != local_rank && transfer.destination != Transfer::kAll) continue;
    result.copy(transfer.destination_offset, in + transfer.range.begin, transfer.range.bytes);
  }
}

void copy_to_result(const BoundUnit& unit, const ByteLayout& layout, int local_rank,
                    const ExchangeTarget& result) {
  for (const Transfer& transfer : layout) {
    if (transfer.destination != local_rank && transfer.destination != Transfer::kAll) continue;
    if (transfer.source == Transfer::kAll) {
      sum_transfer(unit, transfer, unit.scale, result.at(transfer.destination_offset));
    } else {
      result.copy(transfer.destination_offset, source_of(unit, transfer), transfer.range.bytes);
    }
  }
}

}  // namespace hora
