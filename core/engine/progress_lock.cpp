#include "core/engine/progress_lock.h"

#include <thread>

namespace hora {

// The capability is the mutex, which the analysis cannot know.
void ProgressLock::lock() HORA_NOT_ANALYSED {
  while (is_asked_for()) std::this_thread::yield();
  mutex_.lock();
}

void ProgressLock::lock_between_rounds() HORA_NOT_ANALYSED {
  if (mutex_.try_lock()) return;
  asking_.fetch_add(1, kWakeOrder);
  wakeup_flags_.signal(rank_);
  mutex_.lock();
  asking_.fetch_sub(1, kWakeOrder);
}

bool ProgressLock::try_lock() HORA_NOT_ANALYSED {
  return !is_asked_for() && mutex_.try_lock();
}

void ProgressLock::unlock() HORA_NOT_ANALYSED {
  mutex_.unlock();
}

}  // namespace hora
