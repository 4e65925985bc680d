#include "core/control_block/wakeup_flags.h"

#include <utility>

#include "core/control_block/atomic.h"

namespace hora::internal {

WakeupFlags::WakeupFlags(Cell* cells, int ranks, int own_rank) : own_cell_(cells + own_rank) {
  for (int r = 0; r < ranks; ++r) cells_.push_back(cells + r);
}

WakeupFlags WakeupFlags::among(const std::vector<int>& members) const {
  std::vector<Cell*> cells;
  for (const int rank : members) cells.push_back(cells_[static_cast<std::size_t>(rank)]);
  return {std::move(cells), own_cell_};
}

bool WakeupFlags::sleeps(int rank) const {
  const Cell& target = *cells_[static_cast<std::size_t>(rank)];
  const std::uint32_t caller = target.caller.load(kWakeOrder);
  if (caller != kNoCaller) return caller == kCallerAsleep;
  return target.engine_asleep.load(kWakeOrder) != 0;
}

void WakeupFlags::signal(int rank) const {
  if (!sleeps(rank)) return;
  Cell& target = *cells_[static_cast<std::size_t>(rank)];
  auto& word =
      target.caller.load(kWakeOrder) == kCallerAsleep ? target.caller_wake : target.engine_wake;
  word.fetch_add(1, kWakeOrder);
  futex_wake(word);
}

void WakeupFlags::wake_engine() const {
  own_cell_->engine_wake.fetch_add(1, kWakeOrder);
  futex_wake(own_cell_->engine_wake);
}

void WakeupFlags::set_caller(bool on) const {
  own_cell_->caller.store(on ? kCallerAwake : kNoCaller, kWakeOrder);
}

std::uint32_t WakeupFlags::announce(Sleeper who) const {
  const bool caller = who == Sleeper::caller;
  const std::uint32_t before =
      (caller ? own_cell_->caller_wake : own_cell_->engine_wake).load(kWakeOrder);
  if (caller) {
    own_cell_->caller.store(kCallerAsleep, kWakeOrder);
  } else {
    own_cell_->engine_asleep.store(1, kWakeOrder);
  }
  return before;
}

void WakeupFlags::wait(Sleeper who, std::uint32_t before, SleepLength length) const {
  futex_wait(who == Sleeper::caller ? own_cell_->caller_wake : own_cell_->engine_wake, before,
             length);
}

void WakeupFlags::end(Sleeper who) const {
  if (who == Sleeper::caller) {
    own_cell_->caller.store(kCallerAwake, kWakeOrder);
  } else {
    own_cell_->engine_asleep.store(0, kWakeOrder);
  }
}

}  // namespace hora::internal
