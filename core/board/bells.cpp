#include "core/board/bells.h"

#include <utility>

#include "core/board/futex.h"

namespace hora {

Bells::Bells(Cell* cells, int ranks, int mine) : mine_(cells + mine) {
  for (int r = 0; r < ranks; ++r) cells_.push_back(cells + r);
}

Bells Bells::among(const std::vector<int>& members) const {
  std::vector<Cell*> cells;
  for (const int rank : members) cells.push_back(cells_[static_cast<std::size_t>(rank)]);
  return {std::move(cells), mine_};
}

bool Bells::sleeps(int rank) const {
  const Cell& target = *cells_[static_cast<std::size_t>(rank)];
  const std::uint32_t driver = target.driver.load(std::memory_order_seq_cst);
  if (driver != kNoDriver) return driver == kDriverAsleep;
  return target.engine_asleep.load(std::memory_order_seq_cst) != 0;
}

void Bells::signal(int rank) const {
  if (!sleeps(rank)) return;
  Cell& target = *cells_[static_cast<std::size_t>(rank)];
  auto& word = target.driver.load(std::memory_order_seq_cst) == kDriverAsleep ? target.driver_wake
                                                                              : target.engine_wake;
  word.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(word);
}

void Bells::wake_engine() const {
  mine_->engine_wake.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(mine_->engine_wake);
}

void Bells::set_driving(bool on) const {
  mine_->driver.store(on ? kDriving : kNoDriver, std::memory_order_seq_cst);
}

std::uint32_t Bells::announce(Sleeper who) const {
  const bool driver = who == Sleeper::driver;
  const std::uint32_t before =
      (driver ? mine_->driver_wake : mine_->engine_wake).load(std::memory_order_seq_cst);
  if (driver) {
    mine_->driver.store(kDriverAsleep, std::memory_order_seq_cst);
  } else {
    mine_->engine_asleep.store(1, std::memory_order_seq_cst);
  }
  return before;
}

void Bells::wait(Sleeper who, std::uint32_t before,
                 std::optional<std::chrono::nanoseconds> timeout) const {
  futex_wait(who == Sleeper::driver ? mine_->driver_wake : mine_->engine_wake, before, timeout);
}

void Bells::end(Sleeper who) const {
  if (who == Sleeper::driver) {
    mine_->driver.store(kDriving, std::memory_order_seq_cst);
  } else {
    mine_->engine_asleep.store(0, std::memory_order_seq_cst);
  }
}

}  // namespace hora
