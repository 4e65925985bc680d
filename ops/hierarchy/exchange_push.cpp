#include "ops/hierarchy/exchange_push.h"

#include <algorithm>

#include "ops/local/kernels.h"

namespace hora {

ExchangePush::ExchangePush(const BoundUnit& unit, ExchangeSite& site, const ExchangeMap& map,
                           const std::byte* result, std::size_t bytes)
    : unit_(unit), site_(site), results_(static_cast<std::size_t>(unit.local_size)) {
  for (int r = 0; i_push() && r < unit.local_size; ++r) {
    lengths_.push_back(map.result_bytes(site.rank_of(r)));
  }
  if (all_as_expected(map)) {
    for (int r = 0; r < unit.local_size; ++r) {
      find_result(r, unit.exchange.expected[static_cast<std::size_t>(r)]);
    }
    ready_ = true;
  } else {
    desk_round_ = site.rounds;
    if (bytes > 0) mine_ = site.memory.location_of(result, bytes);
  }
}

bool ExchangePush::is_needed(const BoundUnit& unit) {
  const auto& pushes = unit.exchange.pushes;
  return std::find(pushes.begin(), pushes.end(), true) != pushes.end();
}

bool ExchangePush::all_as_expected(const ExchangeMap& map) const {
  for (int r = 0; r < unit_.local_size; ++r) {
    if (unit_.exchange.expected[static_cast<std::size_t>(r)] == kNowhere) return false;
    if (!is_even(map.result_rows(site_.rank_of(r)))) return false;
  }
  return true;
}

bool ExchangePush::i_push() const {
  return unit_.exchange.pushes[static_cast<std::size_t>(site_.local_rank)];
}

void ExchangePush::find_result(int local_rank, Location where) {
  if (!i_push() || local_rank == site_.local_rank || where == kNowhere) return;
  const auto r = static_cast<std::size_t>(local_rank);
  results_[r] = site_.memory.at(local_rank, where, lengths_[r]);
}

bool ExchangePush::poll() {
  if (ready_) return true;
  if (!told_) {
    if (!site_.desk.may_fill(*desk_round_)) return false;
    site_.desk.publish(*desk_round_, mine_);
    told_ = true;
  }
  if (!site_.desk.published(*desk_round_, unit_.local_size)) return false;
  for (int r = 0; r < unit_.local_size; ++r) {
    find_result(r, site_.desk.staging(r, *desk_round_));
  }
  site_.desk.copied(*desk_round_);
  return ready_ = true;
}

void ExchangePush::push(const Stream& pieces) const {
  if (!i_push()) return;
  const std::byte* const input = unit_.tensor(0, site_.local_rank);
  for (const Piece& piece : pieces) {
    if (piece.source != site_.local_rank) continue;
    for (int r = 0; r < unit_.local_size; ++r) {
      if (r == site_.local_rank || (piece.destination != r && piece.destination != Piece::kAll)) {
        continue;
      }
      publish_copy(results_[static_cast<std::size_t>(r)] + piece.destination_offset,
                   input + piece.source_offset, piece.range.bytes);
    }
  }
}

}  // namespace hora
