/// The lock of the thread that drives the engine.
#pragma once

#include <atomic>

#include "core/board/bells.h"
#include "core/board/wake_order.h"
#include "core/thread_safety.h"

namespace hora {

/// A thread that waits for a result drives until it has it. That depends on peers, and no other
/// thread may have to wait for that: a driver takes the lock by try_lock(), checks is_asked_for()
/// after every round, and releases it then. Others hold it for a moment only: the engine thread
/// for a round, by lock(), which waits for drivers to end, since they do its work; calls that do
/// not wait for peers, by lock_between_rounds(), which has priority.
/// Thread rule: any thread.
class HORA_CAPABILITY("drive lock") DriveLock {
 public:
  /// `bells` outlive it; they wake a driver that sleeps, which is rank `rank` there.
  DriveLock(const Bells& bells, int rank) : bells_(bells), rank_(rank) {}

  void lock() HORA_ACQUIRE();
  void lock_between_rounds() HORA_ACQUIRE();
  /// False also where it is free, but asked for.
  bool try_lock() HORA_TRY_ACQUIRE(true);
  void unlock() HORA_RELEASE();
  /// Tells the analysis what it cannot follow.
  void assert_held() const HORA_ASSERT_HELD() {}

  /// True while a thread waits in lock_between_rounds(). A driver checks it after it has announced
  /// that it sleeps, too.
  bool is_asked_for() const { return asking_.load(kWakeOrder) > 0; }

 private:
  const Bells& bells_;
  const int rank_;
  Mutex mutex_;
  std::atomic<int> asking_{0};
};

/// Holds the lock for a moment, without waiting for peers.
class HORA_SCOPED_CAPABILITY BetweenRounds {
 public:
  explicit BetweenRounds(DriveLock& lock) HORA_ACQUIRE(lock) : lock_(lock) {
    lock_.lock_between_rounds();
  }
  ~BetweenRounds() HORA_RELEASE() { lock_.unlock(); }
  BetweenRounds(const BetweenRounds&) = delete;
  BetweenRounds& operator=(const BetweenRounds&) = delete;

 private:
  DriveLock& lock_;
};

}  // namespace hora
