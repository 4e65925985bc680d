/// The lock of whoever drives the engine.
#pragma once

#include <atomic>
#include <mutex>

#include "core/board/bells.h"

namespace hora {

/// A thread that waits for a result drives until it has it, which depends on peers, so nobody else
/// may have to wait for that: a driver takes the lock by try_lock(), looks at is_asked_for() after
/// every round, and lets go then. Others hold it for a moment only: the engine thread for a round,
/// by lock(), which waits for drivers to end, since they do its work; whoever promises not to wait
/// for peers by lock_between_rounds(). Those who ask go first.
/// Thread rule: any thread.
class DriveLock {
 public:
  /// `bells` outlive it; by them a driver that sleeps is woken, who is rank `mine` there.
  DriveLock(const Bells& bells, int mine) : bells_(bells), mine_(mine) {}

  void lock();
  void lock_between_rounds();
  /// False also where it is free, but asked for.
  bool try_lock();
  void unlock() { mutex_.unlock(); }

  /// True while somebody waits in lock_between_rounds(). A driver looks at it after it has
  /// announced that it sleeps, too.
  bool is_asked_for() const { return asking_.load(std::memory_order_seq_cst) > 0; }

 private:
  const Bells& bells_;
  const int mine_;
  std::mutex mutex_;
  std::atomic<int> asking_{0};
};

/// Holds the lock for a moment, without waiting for peers.
class BetweenRounds {
 public:
  explicit BetweenRounds(DriveLock& lock) : lock_(lock) { lock_.lock_between_rounds(); }
  ~BetweenRounds() { lock_.unlock(); }
  BetweenRounds(const BetweenRounds&) = delete;
  BetweenRounds& operator=(const BetweenRounds&) = delete;

 private:
  DriveLock& lock_;
};

}  // namespace hora
