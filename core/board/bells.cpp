#include "core/board/bells.h"

#include <utility>

#include "core/board/futex.h"
#include "core/board/wake_order.h"

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
  const std::uint32_t driver = target.driver.load(kWakeOrder);
  if (driver != kNoDriver) return driver == kDriverAsleep;
  return target.engine_asleep.load(kWakeOrder) != 0;
}

void Bells::signal(int rank) const {
  if (!sleeps(rank)) return;
  Cell& target = *cells_[static_cast<std::size_t>(rank)];
  auto& word =
      target.driver.load(kWakeOrder) == kDriverAsleep ? target.driver_wake : target.engine_wake;
  word.fetch_add(1, kWakeOrder);
  futex_wake(word);
}

void Bells::wake_engine() const {
  mine_->engine_wake.fetch_add(1, kWakeOrder);
  futex_wake(mine_->engine_wake);
}

void Bells::set_driving(bool on) const {
  mine_->driver.store(on ? kDriving : kNoDriver, kWakeOrder);
}

std::uint32_t Bells::announce(Sleeper who) const {
  const bool driver = who == Sleeper::driver;
  const std::uint32_t before = (driver ? mine_->driver_wake : mine_->engine_wake).load(kWakeOrder);
  if (driver) {
    mine_->driver.store(kDriverAsleep, kWakeOrder);
  } else {
    mine_->engine_asleep.store(1, kWakeOrder);
  }
  return before;
}

void Bells::wait(Sleeper who, std::uint32_t before,
                 std::optional<std::chrono::nanoseconds> timeout) const {
  futex_wait(who == Sleeper::driver ? mine_->driver_wake : mine_->engine_wake, before, timeout);
}

void Bells::end(Sleeper who) const {
  if (who == Sleeper::driver) {
    mine_->driver.store(kDriving, kWakeOrder);
  } else {
    mine_->engine_asleep.store(0, kWakeOrder);
  }
}

}  // namespace hora
