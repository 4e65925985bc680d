/// Errors of collectives that no call has thrown.
#pragma once

#include <hora/error.h>

#include <atomic>
#include <optional>

#include "core/engine/submission.h"
#include "core/thread_safety.h"

namespace hora {

/// Keeps the first one for shutdown(), unless the application has got another: it knows then that
/// something failed. Thread rule: any thread.
class UnreportedError {
 public:
  /// The application gets an error.
  void reported() noexcept { reported_.store(true); }
  void keep(const Error& error) {
    const LockGuard lock(mutex_);
    if (!first_) first_ = detached(error);
  }
  std::optional<Error> get() const {
    const LockGuard lock(mutex_);
    return first_ && !reported_.load() ? std::optional(detached(*first_)) : std::nullopt;
  }

 private:
  std::atomic<bool> reported_{false};
  mutable Mutex mutex_;
  std::optional<Error> first_ HORA_GUARDED_BY(mutex_);
};

}  // namespace hora
