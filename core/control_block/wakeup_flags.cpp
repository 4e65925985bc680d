#include "core/control_block/wakeup_flags.h"

#include <hora/error.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <system_error>
#include <utility>

namespace hora::internal {

#if !defined(HORA_ATOMIC_HEADER)  // the model checker has its own (tests/support/model/futex.cpp)

static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds> timeout) {
  timespec relative{};
  if (timeout) {
    const auto nanoseconds = timeout->count() > 0 ? timeout->count() : 0;
    relative.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
    relative.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  }
  // Not FUTEX_PRIVATE: the word lies in memory that several processes map.
  const long result =
      ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, timeout ? &relative : nullptr, nullptr, 0);
  if (result == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT) return;
  throw Error(ErrorCode::transport, "futex wait failed: " + std::generic_category().message(errno));
}

void futex_wake(const Atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#endif

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

}  // namespace hora::internal
