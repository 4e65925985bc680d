/// The lock of the thread that makes progress for the engine.
#pragma once

#include <atomic>
#include <thread>

#include "core/base/sync.h"
#include "core/control_block/atomic.h"
#include "core/control_block/wakeup_flags.h"

namespace hora::internal {

/// A thread that waits for a result makes progress until it has it. That depends on peers, and no
/// other thread may have to wait for that: a progress thread takes the lock by try_lock(), checks
/// is_asked_for() after every round, and releases it then. Others hold it for a moment only: the
/// engine thread for a round, by lock(), which waits for progress threads to end, since they do its
/// work; calls that do not wait for peers, by lock_between_rounds(), which has priority. Thread
/// rule: any thread.
class HORA_CAPABILITY("progress lock") ProgressLock {
 public:
  /// `wakeup_flags` outlive it; they wake a progress thread that sleeps, which is rank `rank`
  /// there.
  ProgressLock(const WakeupFlags& wakeup_flags, int rank)
      : wakeup_flags_(wakeup_flags), rank_(rank) {}

  // The capability is the mutex, which the analysis cannot know.
  void lock() HORA_ACQUIRE() HORA_NOT_ANALYSED {
    while (is_asked_for()) std::this_thread::yield();
    mutex_.lock();
  }
  void lock_between_rounds() HORA_ACQUIRE() HORA_NOT_ANALYSED {
    if (mutex_.try_lock()) return;
    asking_.fetch_add(1, kWakeOrder);
    wakeup_flags_.signal(rank_);
    mutex_.lock();
    asking_.fetch_sub(1, kWakeOrder);
  }
  /// False also where it is free, but asked for.
  bool try_lock() HORA_TRY_ACQUIRE(true) HORA_NOT_ANALYSED {
    return !is_asked_for() && mutex_.try_lock();
  }
  void unlock() HORA_RELEASE() HORA_NOT_ANALYSED { mutex_.unlock(); }
  /// Tells the analysis what it cannot follow.
  void assert_held() const HORA_ASSERT_HELD() {}

  /// True while a thread waits in lock_between_rounds(). A progress thread checks it after it has
  /// announced that it sleeps, too.
  bool is_asked_for() const { return asking_.load(kWakeOrder) > 0; }

 private:
  const WakeupFlags& wakeup_flags_;
  const int rank_;
  Mutex mutex_;
  std::atomic<int> asking_{0};
};

/// Holds the lock for a moment, without waiting for peers.
class HORA_SCOPED_CAPABILITY BetweenRounds {
 public:
  explicit BetweenRounds(ProgressLock& lock) HORA_ACQUIRE(lock) : lock_(lock) {
    lock_.lock_between_rounds();
  }
  ~BetweenRounds() HORA_RELEASE() { lock_.unlock(); }
  BetweenRounds(const BetweenRounds&) = delete;
  BetweenRounds& operator=(const BetweenRounds&) = delete;

 private:
  ProgressLock& lock_;
};

}  // namespace hora::internal
