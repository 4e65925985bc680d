/// NodeControlBlock: how far the ranks have come, and which ranks are woken by that.
#include "core/control_block/node_control_block.h"
#include "core/control_block/wake_order.h"

namespace hora {

void NodeControlBlock::set_done(std::uint64_t units) {
  rank(local_rank_).done.store(units, kWakeOrder);
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r == local_rank_ || !wakeup_flags_.sleeps(r)) continue;
    const std::uint64_t awaited = rank(r).awaited.load(kWakeOrder);
    if (awaited != 0 && units >= awaited) signal(r);
  }
}

std::uint64_t NodeControlBlock::done_by_all() const {
  return slowest(&RankCell::done, kWakeOrder);
}

void NodeControlBlock::await_done(std::uint64_t units) {
  rank(local_rank_).awaited.store(units, kWakeOrder);
}

void NodeControlBlock::signal_others() {
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r != local_rank_) signal(r);
  }
}

}  // namespace hora
