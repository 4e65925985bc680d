/// How the ranks of a node wake one another, and sleeping on a word that other processes change.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/control_block/atomic.h"

namespace hora::internal {

/// Sleeps until woken, until `timeout` has passed, or not at all when `word` no longer holds
/// `expected`. May wake without cause. Works across processes (std::atomic::wait does not).
void futex_wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds> timeout);

/// Wakes every sleeper on `word`.
void futex_wake(const Atomic<std::uint32_t>& word) noexcept;

/// A view of wake-up words in shared memory, all zero at first. One rank has one cell, however many
/// process sets it is in: each set's control block holds a view with its own numbering. A rank has
/// two sleepers: its engine thread, and a thread that makes progress in its place. A sleeper
/// announces itself before it decides whether and how long to sleep, so no wake-up is lost where
/// work is stored and checked for as atomic.h says; what it has seen before may be outdated. Thread
/// rule: signal and sleeps: any thread of any rank; the others: this rank's.
class WakeupFlags {
 public:
  struct alignas(64) Cell {
    Atomic<std::uint32_t> engine_wake;  ///< futex word
    Atomic<std::uint32_t> engine_asleep;
    Atomic<std::uint32_t> caller_wake;  ///< futex word
    Atomic<std::uint32_t> caller;       ///< kNoCaller, ...
  };
  enum class Sleeper { engine, caller };
  /// Zero: not at all; nothing: until signalled.
  using SleepLength = std::optional<std::chrono::nanoseconds>;
  static constexpr SleepLength kNoSleep = std::chrono::nanoseconds(0);

  /// Rank r's cell is cells[r].
  WakeupFlags(Cell* cells, int ranks, int own_rank);
  /// The same wakeup_flags as a process set numbers them: its rank i is `members[i]` here.
  WakeupFlags among(const std::vector<int>& members) const;

  /// Wakes that rank's caller if it sleeps; its engine if it sleeps and there is no caller.
  void signal(int rank) const;
  bool sleeps(int rank) const;
  /// Wakes this rank's engine thread, even while another thread makes progress.
  void wake_engine() const;
  /// A caller of this rank begins or ends.
  void set_caller(bool on) const;
  /// Sleeps until signalled, at most as long as `decide()` says, which is called after the
  /// announcement.
  template <class Decide>
  void sleep(Sleeper who, Decide&& decide) const {
    const bool is_caller = who == Sleeper::caller;
    auto& word = is_caller ? own_cell_->caller_wake : own_cell_->engine_wake;
    auto& state = is_caller ? own_cell_->caller : own_cell_->engine_asleep;
    const std::uint32_t before = word.load(kWakeOrder);
    state.store(is_caller ? kCallerAsleep : 1, kWakeOrder);
    const SleepLength length = decide();
    if (length != kNoSleep) futex_wait(word, before, length);
    state.store(is_caller ? kCallerAwake : 0, kWakeOrder);
  }

 private:
  // Values of Cell::caller.
  static constexpr std::uint32_t kNoCaller = 0, kCallerAwake = 1, kCallerAsleep = 2;

  WakeupFlags(std::vector<Cell*> cells, Cell* own_cell)
      : cells_(std::move(cells)), own_cell_(own_cell) {}

  std::vector<Cell*> cells_;  ///< by rank
  Cell* own_cell_;
};

}  // namespace hora::internal
