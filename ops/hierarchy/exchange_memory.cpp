#include "ops/hierarchy/exchange_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/control_block/tensor_id.h"
#include "ops/local/kernels.h"

namespace hora::internal {

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

/// Results from here on gain by non-temporal stores (docs/performance.md).
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

ExchangePush::ExchangePush(const BoundUnit& unit, ExchangeContext& context, const ExchangeMap& map,
                           const std::byte* result, std::size_t bytes)
    : unit_(unit), context_(context), results_(static_cast<std::size_t>(unit.local_size)) {
  for (int r = 0; i_push() && r < unit.local_size; ++r) {
    lengths_.push_back(map.result_bytes(context.rank_of(r)));
  }
  if (all_as_expected(map)) {
    for (int r = 0; r < unit.local_size; ++r) {
      find_result(r, unit.exchange.expected[static_cast<std::size_t>(r)]);
    }
    ready_ = true;
  } else {
    exchange_round_ = context.rounds_done;
    if (bytes > 0) own_result_ = context.memory.location_of(result, bytes);
  }
}

bool ExchangePush::is_needed(const BoundUnit& unit) {
  const auto& pushes = unit.exchange.pushes;
  return std::find(pushes.begin(), pushes.end(), true) != pushes.end();
}

bool ExchangePush::all_as_expected(const ExchangeMap& map) const {
  for (int r = 0; r < unit_.local_size; ++r) {
    if (unit_.exchange.expected[static_cast<std::size_t>(r)] == kNowhere) return false;
    if (!is_even(map.result_rows(context_.rank_of(r)))) return false;
  }
  return true;
}

bool ExchangePush::i_push() const {
  return unit_.exchange.pushes[static_cast<std::size_t>(context_.local_rank)];
}

void ExchangePush::find_result(int local_rank, Location where) {
  if (!i_push() || local_rank == context_.local_rank || where == kNowhere) return;
  const auto r = static_cast<std::size_t>(local_rank);
  results_[r] = context_.memory.at(local_rank, where, lengths_[r]);
}

bool ExchangePush::poll() {
  if (ready_) return true;
  if (!told_) {
    if (!context_.rounds.may_fill(*exchange_round_)) return false;
    context_.rounds.publish(*exchange_round_, own_result_);
    told_ = true;
  }
  if (!context_.rounds.published(*exchange_round_, unit_.local_size)) return false;
  for (int r = 0; r < unit_.local_size; ++r) {
    find_result(r, context_.rounds.staging(r, *exchange_round_));
  }
  context_.rounds.copied(*exchange_round_);
  return ready_ = true;
}

void ExchangePush::push(const ByteLayout& transfers) const {
  if (!i_push()) return;
  const std::byte* const input = unit_.tensor(0, context_.local_rank);
  for (const Transfer& transfer : transfers) {
    if (transfer.source != context_.local_rank) continue;
    for (int r = 0; r < unit_.local_size; ++r) {
      if (r == context_.local_rank ||
          (transfer.destination != r && transfer.destination != Transfer::kAll)) {
        continue;
      }
      publish_copy(results_[static_cast<std::size_t>(r)] + transfer.destination_offset,
                   input + transfer.source_offset, transfer.range.bytes);
    }
  }
}

}  // namespace hora::internal
