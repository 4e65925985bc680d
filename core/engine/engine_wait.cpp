/// Engine: waiting for results, and making progress meanwhile.
#include <sys/prctl.h>

#include <utility>

#include "core/control_block/futex.h"
#include "core/engine/engine.h"
#include "core/engine/trace_hooks.h"
#include "core/identity.h"
#include "core/log.h"
#include "core/tensor_text.h"

namespace hora {
namespace {

/// Where cores are scarce a rank polls this long before it yields.
constexpr Duration kBriefly = std::chrono::microseconds(1);

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

/// Makes progress in the engine thread's place from take() on, as progress_lock.h says of progress
/// threads.
class Engine::ProgressGuard {
 public:
  explicit ProgressGuard(Engine& engine) : engine_(engine) {}
  ~ProgressGuard() { leave(); }
  ProgressGuard(const ProgressGuard&) = delete;
  ProgressGuard& operator=(const ProgressGuard&) = delete;

  /// False where another thread makes progress or is about to, and after stop(): what it would
  /// make_progress may be destroyed.
  bool take() {
    if (lock_.owns_lock()) return true;
    if (engine_.stopping_.load() || !lock_.try_lock()) return false;
    engine_.wakeup_flags_.set_caller(true);
    return true;
  }
  void leave() {
    if (!lock_.owns_lock()) return;
    engine_.progress_lock_.assert_held();
    engine_.wakeup_flags_.set_caller(false);
    // Signals meanwhile went to this caller, and only it has polled: the engine thread has neither.
    const bool leftover = engine_.has_pending_work() || engine_.is_running() || engine_.must_poll();
    lock_.unlock();
    if (leftover) engine_.wakeup_flags_.signal(engine_.world().control_block().local_rank());
  }

 private:
  Engine& engine_;
  std::unique_lock<ProgressLock> lock_{engine_.progress_lock_, std::defer_lock};
};

void Engine::submit_and_wait(Request request, ProcessSet set) {
  SetEngine& engine = set_engine(set, request.name);
  ProgressGuard guard(*this);
  guard.take();
  const auto submission = engine.submit(std::move(request), Caller::waits);
  await(*submission, guard);
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
    unreported_.keep({error.code(), error.what(), error.rank(), submission.name});
  }
}

void Engine::collect(Submission& submission) {
  try {
    submission.set->collect(submission);
  } catch (const Error&) {
    unreported_.reported();
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
  ProgressGuard guard(*this);
  await(submission, guard);
}

void Engine::await(const Submission& submission, ProgressGuard& guard) {
  const TracedWait blocked(submission.set->trace(), submission);
  Duration begin = now();
  while (!submission.finished() && now() - begin <= parts_.settings.spin) {
    if (!guard.take()) {
      std::this_thread::yield();
      continue;
    }
    progress_lock_.assert_held();
    progress_until_finished_or_asked(submission);
    if (submission.finished()) break;
    guard.leave();
    begin = now();
  }
  guard.leave();
  if (submission.finished()) return;
  // Another thread makes progress, and the engine thread after it, which may be in a pause between
  // two polls: now a thread is blocked.
  waiters_.fetch_add(1);
  if (!single_node_) wakeup_flags_.signal(world().control_block().local_rank());
  block_until_finished(submission);
  waiters_.fetch_sub(1);
}

void Engine::block_until_finished(const Submission& submission) {
  while (!submission.finished()) {
    if (has_thread()) {
      submission.state.wait(Submission::kPending, std::memory_order_acquire);
    } else if (!progress()) {
      std::this_thread::yield();
    }
  }
}

void Engine::progress_until_finished_or_asked(const Submission& submission) {
  // Yielding may cost a whole time slice of an unrelated process.
  const Duration spinning = parts_.has_core ? Duration(parts_.settings.spin) : kBriefly;
  Duration idle_since = now();
  while (!submission.finished() && !progress_lock_.is_asked_for()) {
    if (make_progress()) {
      idle_since = now();
      continue;
    }
    const Duration idle = now() - idle_since;
    if (idle < spinning) {
      spin_pause();
    } else if (idle < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      const auto pause = pause_length(idle, /*awaited=*/true);
      await_done();
      const PreciseSleep precise;
      wakeup_flags_.sleep(WakeupFlags::Sleeper::caller, pause, [&] {
        progress_lock_.assert_held();
        return has_pending_work() || submission.finished() || progress_lock_.is_asked_for();
      });
      report_stalls();
    }
  }
}

}  // namespace hora
