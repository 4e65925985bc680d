#include "core/engine/drive_lock.h"

#include <thread>

namespace hora {

void DriveLock::lock() {
  while (is_asked_for()) std::this_thread::yield();
  mutex_.lock();
}

void DriveLock::lock_between_rounds() {
  if (mutex_.try_lock()) return;
  asking_.fetch_add(1, std::memory_order_seq_cst);
  bells_.signal(mine_);
  mutex_.lock();
  asking_.fetch_sub(1, std::memory_order_seq_cst);
}

bool DriveLock::try_lock() {
  return !is_asked_for() && mutex_.try_lock();
}

}  // namespace hora
