/// Engine: waiting for results, and driving meanwhile.
#include <sys/prctl.h>

#include <utility>

#include "core/board/futex.h"
#include "core/engine/engine.h"
#include "core/engine/trace_hooks.h"
#include "core/identity.h"
#include "core/log.h"
#include "core/tensor_text.h"

namespace hora {
namespace {

/// Where cores are scarce a rank polls this long before it yields.
constexpr Now kBriefly = std::chrono::microseconds(1);

/// The kernel's default slack would add 50 us to each pause between two polls.
class PreciseSleep {
 public:
  PreciseSleep() : slack_(::prctl(PR_GET_TIMERSLACK)) { ::prctl(PR_SET_TIMERSLACK, 1000UL); }
  ~PreciseSleep() {
    if (slack_ > 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_));
  }
  PreciseSleep(const PreciseSleep&) = delete;
  PreciseSleep& operator=(const PreciseSleep&) = delete;

 private:
  int slack_;
};

}  // namespace

/// Drives in the engine thread's place from take() on, as drive_lock.h says of drivers.
class Engine::DriverSeat {
 public:
  explicit DriverSeat(Engine& engine) : engine_(engine) {}
  ~DriverSeat() { leave(); }
  DriverSeat(const DriverSeat&) = delete;
  DriverSeat& operator=(const DriverSeat&) = delete;

  /// False where another thread drives or is about to, and after stop(): what it would drive may
  /// be destroyed.
  bool take() {
    if (lock_.owns_lock()) return true;
    if (engine_.stopping_.load() || !lock_.try_lock()) return false;
    engine_.bells_.set_driving(true);
    return true;
  }
  void leave() {
    if (!lock_.owns_lock()) return;
    engine_.drive_lock_.assert_held();
    engine_.bells_.set_driving(false);
    // Signals meanwhile went to this driver, and only it has polled: the engine thread has neither.
    const bool leftover = engine_.has_news() || engine_.is_running() || engine_.must_poll();
    lock_.unlock();
    if (leftover) engine_.bells_.signal(engine_.world().board().local_rank());
  }

 private:
  Engine& engine_;
  std::unique_lock<DriveLock> lock_{engine_.drive_lock_, std::defer_lock};
};

void Engine::submit_and_wait(Request request, ProcessSet set) {
  SetEngine& engine = set_engine(set, request.name);
  DriverSeat seat(*this);
  seat.take();
  const auto submission = engine.submit(std::move(request), SetEngine::Caller::waits);
  await(*submission, seat);
  collect(*submission);
}

void Engine::wait(Submission& submission) {
  await(submission);
  collect(submission);
}

void Engine::drop(Submission& submission) {
  await(submission);
  try {
    submission.set->collect(submission);
  } catch (const Error& error) {
    log().warn("{}: the handle of {} was dropped and its error lost: {}",
               to_string(identity_of_process(parts_.rank)), tensor_text(submission.name),
               error.what());
    untold_.keep({error.code(), error.what(), error.rank(), submission.name});
  }
}

void Engine::collect(Submission& submission) {
  try {
    submission.set->collect(submission);
  } catch (const Error&) {
    untold_.told();
    throw;
  }
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
  Now begin = now();
  while (!submission.finished() && now() - begin <= parts_.settings.spin) {
    if (!seat.take()) {
      std::this_thread::yield();
      continue;
    }
    drive_lock_.assert_held();
    drive_until_finished_or_asked(submission);
    if (submission.finished()) break;
    seat.leave();
    begin = now();
  }
  seat.leave();
  if (submission.finished()) return;
  // Another thread drives, and the engine thread after it, which may be in a pause between two
  // polls: now a thread is blocked.
  waiters_.fetch_add(1);
  if (!single_node_) bells_.signal(world().board().local_rank());
  block_until_finished(submission);
  waiters_.fetch_sub(1);
}

void Engine::block_until_finished(const Submission& submission) {
  while (!submission.finished()) {
    if (has_thread()) {
      submission.state.wait(Submission::kPending, std::memory_order_acquire);
    } else if (!step()) {
      std::this_thread::yield();
    }
  }
}

void Engine::drive_until_finished_or_asked(const Submission& submission) {
  // Yielding may cost a whole time slice of an unrelated process.
  const Now spinning = parts_.has_core ? Now(parts_.settings.spin) : kBriefly;
  Now idle_since = now();
  while (!submission.finished() && !drive_lock_.is_asked_for()) {
    if (drive()) {
      idle_since = now();
      continue;
    }
    const Now idle = now() - idle_since;
    if (idle < spinning) {
      spin_pause();
    } else if (idle < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      const auto pause = pause_length(idle, /*awaited=*/true);
      await_done();
      const PreciseSleep precise;
      bells_.sleep(Bells::Sleeper::driver, pause, [&] {
        drive_lock_.assert_held();
        return has_news() || submission.finished() || drive_lock_.is_asked_for();
      });
      complain_about_overdue();
    }
  }
}

}  // namespace hora
