/// NodeBoard: how far the ranks have come, sleeping and waking.
#include "core/board/board.h"
#include "core/board/futex.h"

namespace hora {

void NodeBoard::set_done(std::uint64_t units) {
  rank(local_rank_).done.store(units, std::memory_order_seq_cst);
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r == local_rank_ || !sleeps(r)) continue;
    const std::uint64_t awaited = rank(r).awaited.load(std::memory_order_seq_cst);
    if (awaited != 0 && units >= awaited) signal(r);
  }
}

std::uint64_t NodeBoard::done_by_all() const {
  return slowest(&RankCell::done);
}

bool NodeBoard::sleeps(int local_rank) const {
  const RankCell& target = rank(local_rank);
  const std::uint32_t driver = target.driver.load(std::memory_order_seq_cst);
  if (driver != kNoDriver) return driver == kDriverAsleep;
  return target.engine_asleep.load(std::memory_order_seq_cst) != 0;
}

void NodeBoard::signal(int local_rank) {
  RankCell& target = rank(local_rank);
  if (!sleeps(local_rank)) return;
  auto& word = target.driver.load(std::memory_order_seq_cst) == kDriverAsleep ? target.driver_wake
                                                                              : target.engine_wake;
  word.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(word);
}

void NodeBoard::signal_others() {
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r != local_rank_) signal(r);
  }
}

void NodeBoard::wake_engine() {
  rank(local_rank_).engine_wake.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(rank(local_rank_).engine_wake);
}

void NodeBoard::set_driving(bool on) {
  rank(local_rank_).driver.store(on ? kDriving : kNoDriver, std::memory_order_seq_cst);
}

std::uint32_t NodeBoard::announce_sleep(Sleeper who, std::uint64_t awaited) {
  RankCell& me = rank(local_rank_);
  const bool driver = who == Sleeper::driver;
  const std::uint32_t before =
      (driver ? me.driver_wake : me.engine_wake).load(std::memory_order_seq_cst);
  me.awaited.store(awaited, std::memory_order_seq_cst);
  if (driver) {
    me.driver.store(kDriverAsleep, std::memory_order_seq_cst);
  } else {
    me.engine_asleep.store(1, std::memory_order_seq_cst);
  }
  return before;
}

void NodeBoard::sleep_announced(Sleeper who, std::uint32_t before,
                                std::optional<std::chrono::nanoseconds> timeout) {
  RankCell& me = rank(local_rank_);
  futex_wait(who == Sleeper::driver ? me.driver_wake : me.engine_wake, before, timeout);
}

void NodeBoard::end_sleep(Sleeper who) {
  RankCell& me = rank(local_rank_);
  if (who == Sleeper::driver) {
    me.driver.store(kDriving, std::memory_order_seq_cst);
  } else {
    me.engine_asleep.store(0, std::memory_order_seq_cst);
  }
}

}  // namespace hora
