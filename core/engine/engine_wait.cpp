/// Engine: waiting for results, and driving meanwhile.
#include <utility>

#include "core/board/futex.h"
#include "core/engine/engine.h"
#include "core/engine/trace_hooks.h"

namespace hora {

/// Drives in the engine thread's place from take() on; holds the drive lock then.
class Engine::DriverSeat {
 public:
  explicit DriverSeat(Engine& engine) : engine_(engine) {}
  ~DriverSeat() { leave(); }
  DriverSeat(const DriverSeat&) = delete;
  DriverSeat& operator=(const DriverSeat&) = delete;

  /// False where somebody else drives, or only the engine thread may.
  bool take() {
    if (lock_.owns_lock()) return true;
    if (!engine_.single_node_ || !lock_.try_lock()) return false;
    engine_.bells_.set_driving(true);
    return true;
  }
  void leave() {
    if (!lock_.owns_lock()) return;
    engine_.bells_.set_driving(false);
    // What came meanwhile was signalled to me: hand it on.
    const bool leftover = engine_.has_news() || engine_.is_running();
    lock_.unlock();
    if (leftover) engine_.bells_.signal(engine_.world().board().local_rank());
  }

 private:
  Engine& engine_;
  std::unique_lock<std::mutex> lock_{engine_.drive_lock_, std::defer_lock};
};

void Engine::submit_and_wait(Request request, ProcessSet set) {
  SetEngine& engine = set_engine(set, request.name);
  DriverSeat seat(*this);
  seat.take();
  const auto submission = engine.submit(std::move(request), SetEngine::Caller::waits);
  await(*submission, seat);
  engine.collect(*submission);
}

void Engine::wait(Submission& submission) {
  await(submission);
  submission.set->collect(submission);
}

int Engine::join(ProcessSet set) {
  SetEngine& engine = set_engine(set);
  for (const auto& submission : engine.unfinished()) await(*submission);
  const auto submission = engine.join();
  wait(*submission);
  return submission->number;
}

void Engine::await(const Submission& submission) {
  DriverSeat seat(*this);
  await(submission, seat);
}

void Engine::await(const Submission& submission, DriverSeat& seat) {
  const TracedWait blocked(submission.set->trace(), submission);
  if (!submission.finished() && seat.take()) drive_until_finished(submission);
  seat.leave();
  if (!submission.finished()) {
    // A leader's engine may be resting between two polls: now somebody waits for it.
    waiters_.fetch_add(1);
    if (!single_node_) bells_.signal(world().board().local_rank());
    block_until_finished(submission);
    waiters_.fetch_sub(1);
  }
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

void Engine::drive_until_finished(const Submission& submission) {
  Now idle_since = now();
  while (!submission.finished()) {
    if (drive(/*network=*/false)) {
      idle_since = now();
      continue;
    }
    const Now idle = now() - idle_since;
    if (idle < std::chrono::microseconds(1)) {
      spin_pause();
    } else if (idle < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      await_done();
      bells_.sleep(Bells::Sleeper::driver, kOverdueTick, [&] { return has_news(); });
      complain_about_overdue();
    }
  }
}

}  // namespace hora
