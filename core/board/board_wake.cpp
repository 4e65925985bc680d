/// NodeBoard: how far the ranks have come, and who is woken by that.
#include "core/board/board.h"

namespace hora {

void NodeBoard::set_done(std::uint64_t units) {
  rank(local_rank_).done.store(units, std::memory_order_seq_cst);
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r == local_rank_ || !bells_.sleeps(r)) continue;
    const std::uint64_t awaited = rank(r).awaited.load(std::memory_order_seq_cst);
    if (awaited != 0 && units >= awaited) signal(r);
  }
}

std::uint64_t NodeBoard::done_by_all() const {
  return slowest(&RankCell::done);
}

void NodeBoard::await_done(std::uint64_t units) {
  rank(local_rank_).awaited.store(units, std::memory_order_seq_cst);
}

void NodeBoard::signal_others() {
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r != local_rank_) signal(r);
  }
}

}  // namespace hora
