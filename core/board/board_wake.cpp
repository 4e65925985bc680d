/// NodeBoard: how far the ranks have come, and which ranks are woken by that.
#include "core/board/board.h"
#include "core/board/wake_order.h"

namespace hora {

void NodeBoard::set_done(std::uint64_t units) {
  rank(local_rank_).done.store(units, kWakeOrder);
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r == local_rank_ || !bells_.sleeps(r)) continue;
    const std::uint64_t awaited = rank(r).awaited.load(kWakeOrder);
    if (awaited != 0 && units >= awaited) signal(r);
  }
}

std::uint64_t NodeBoard::done_by_all() const {
  return slowest(&RankCell::done, kWakeOrder);
}

void NodeBoard::await_done(std::uint64_t units) {
  rank(local_rank_).awaited.store(units, kWakeOrder);
}

void NodeBoard::signal_others() {
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r != local_rank_) signal(r);
  }
}

}  // namespace hora
