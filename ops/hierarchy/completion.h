/// A piece of asynchronous work that is polled, never waited for.
#pragma once

#include <memory>
#include <utility>

namespace hora {

/// Work under way. poll() makes progress without blocking and returns whether it is complete; it
/// throws hora::Error when the work has failed. Not called again once it has returned true.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  virtual bool poll() = 0;
};

/// Owner of pending work; default-constructed: complete already. Thread rule: one thread at a time.
class Completion {
 public:
  Completion() noexcept = default;
  explicit Completion(std::unique_ptr<PendingWork> work) noexcept : work_(std::move(work)) {}

  bool poll() {
    if (work_ && work_->poll()) work_.reset();
    return work_ == nullptr;
  }

 private:
  std::unique_ptr<PendingWork> work_;
};

}  // namespace hora
