/// Engine: waiting for results, and driving meanwhile.
#include <utility>

#include "core/engine/engine.h"
#include "core/engine/trace_hooks.h"

namespace hora {

void Engine::collect(Submission& submission) {
  const bool done = submission.state.load(std::memory_order_acquire) == Submission::kDone;
  if (done && submission.user_data) {
    copy_around(submission.direct, submission.user_data, submission.block, submission.bytes);
  }
  if (done && submission.work) submission.work->wait_done(submission.stream);
  release(submission);
  if (!done) throw detached(*submission.error);
}

/// Drives in the engine thread's place while it lives. Holds the drive lock.
class Engine::DriverSeat {
 public:
  DriverSeat(Engine& engine, std::unique_lock<std::mutex> lock)
      : engine_(engine), lock_(std::move(lock)) {
    engine_.board_.set_driving(true);
  }
  ~DriverSeat() {
    engine_.board_.set_driving(false);
    // What came meanwhile was signalled to me: hand it on.
    const bool leftover = engine_.has_news() || !engine_.unfulfilled_.empty();
    lock_.unlock();
    if (leftover) engine_.board_.signal(engine_.board_.local_rank());
  }
  DriverSeat(const DriverSeat&) = delete;
  DriverSeat& operator=(const DriverSeat&) = delete;

 private:
  Engine& engine_;
  std::unique_lock<std::mutex> lock_;
};

void Engine::submit_and_wait(std::string name, Signature signature, std::byte* data, void* stream) {
  std::shared_ptr<Submission> submission;
  if (single_node_) {
    std::unique_lock lock(drive_lock_, std::try_to_lock);
    if (lock) {
      const DriverSeat seat(*this, std::move(lock));
      submission = submit(std::move(name), std::move(signature), data, stream, Caller::waits);
      const TracedWait blocked(parts_.trace, *submission);
      drive_until_finished(*submission);
    }
  }
  if (!submission)
    submission = submit(std::move(name), std::move(signature), data, stream, Caller::waits);
  wait(*submission);
}

void Engine::wait(Submission& submission) {
  const TracedWait blocked(parts_.trace, submission);
  if (!submission.finished() && single_node_) {
    std::unique_lock lock(drive_lock_, std::try_to_lock);
    if (lock) {
      const DriverSeat seat(*this, std::move(lock));
      drive_until_finished(submission);
    }
  }
  if (!submission.finished()) {
    // A leader's engine may be resting between two polls: now somebody waits for it.
    waiters_.fetch_add(1);
    if (!single_node_) board_.signal(board_.local_rank());
    block_until_finished(submission);
    waiters_.fetch_sub(1);
  }
  collect(submission);
}

void Engine::block_until_finished(const Submission& submission) {
  const Now begin = now();
  while (!submission.finished()) {
    if (!has_thread()) {
      if (!step()) std::this_thread::yield();
    } else if (now() - begin < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      submission.state.wait(Submission::kPending, std::memory_order_acquire);
    }
  }
}

void Engine::orphan(const std::shared_ptr<Submission>& submission) {
  {
    const std::lock_guard table(table_lock_);
    if (!submission->finished()) {
      submission->orphaned = true;
      return;
    }
  }
  release(*submission);
}

}  // namespace hora
