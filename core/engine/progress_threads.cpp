#include "core/engine/progress_threads.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/sync.h"

namespace hora::internal {
namespace {

/// CPU time the engine asks for at once. With the kernel's default (3 ms) it does not preempt a
/// computing main thread, and a reduction starts that much later than the last submission.
constexpr std::uint64_t kTimeSliceNanoseconds = 100'000;

/// struct sched_attr of sched_setattr(2), version 0.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;
  std::uint64_t deadline;
  std::uint64_t period;
};

/// A short time slice (Linux 6.12, EEVDF's custom slice) is served sooner. Needs no privilege;
/// older kernels ignore it, and where it is refused nothing is lost but latency.
void ask_for_short_slices() {
  SchedulingAttributes attributes{};
  constexpr unsigned kNoFlags = 0;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, kNoFlags) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.size = sizeof attributes;
  attributes.runtime = kTimeSliceNanoseconds;
  ::syscall(SYS_sched_setattr, 0, &attributes, kNoFlags);
}

/// Where cores are scarce a rank polls this long before it yields.
constexpr Duration kBriefly = std::chrono::microseconds(1);

/// Longest pause between two polls of a thread that waits for a limited time.
constexpr Duration kLongestTimedPoll = std::chrono::milliseconds(1);

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

/// For the time in which a thread is blocked: in the flight record, and in a timeline. Nothing
/// where it is finished already.
class TracedWait {
 public:
  explicit TracedWait(const Submission& submission)
      : trace_(submission.owner->trace()),
        record_(submission.owner->record()),
        blocks_(!submission.finished()) {
    if (!blocks_) return;
    record_.blocked(true);
    if (!trace_.on()) return;
    submission_ = &submission;
    begin_ = trace_now();
  }
  ~TracedWait() {
    if (blocks_) record_.blocked(false);
    if (submission_) finish();
  }
  TracedWait(const TracedWait&) = delete;
  TracedWait& operator=(const TracedWait&) = delete;

 private:
  void finish() noexcept;

  const Tracer& trace_;
  const SetRecord& record_;
  const bool blocks_;
  const Submission* submission_ = nullptr;
  TraceTime begin_{};
};

void TracedWait::finish() noexcept {
  try {
    const std::string thread = this_thread_name();
    const TraceTime end = trace_now();
    trace_.record([&](Recording& recording) {
      recording.waited(thread, trace_.tensor(submission_->name), begin_, end);
    });
  } catch (const std::exception& error) {
    try {
      log().warn("a wait is missing in the timeline: {}", error.what());
    } catch (...) {
      // Logging has failed as well; nothing else is lost.
    }
  }
}

/// While a thread sleeps until a submission is complete, the ranks of the node can see that.
class SeenWait {
 public:
  SeenWait(RankStatus& status, const Submission& submission)
      : status_(status), submission_(submission) {}
  ~SeenWait() {
    if (begun_) status_.waits_for.clear();
  }
  SeenWait(const SeenWait&) = delete;
  SeenWait& operator=(const SeenWait&) = delete;
  void begin() {
    if (!begun_) status_.waits_for.write(submission_.name, now());
    begun_ = true;
  }

 private:
  RankStatus& status_;
  const Submission& submission_;
  bool begun_ = false;
};

}  // namespace

bool ProgressThreads::Turn::take() {
  if (lock_.owns_lock()) return true;
  if (threads_.stopping_.load() || !lock_.try_lock()) return false;
  threads_.wakeup_flags_.set_caller(true);
  return true;
}

void ProgressThreads::Turn::leave() {
  if (!lock_.owns_lock()) return;
  threads_.progress_.lock().assert_held();
  threads_.wakeup_flags_.set_caller(false);
  // Signals went to this caller meanwhile, and only it has polled: the engine thread has seen no
  // signal.
  const bool leftover = threads_.progress_.is_unfinished();
  lock_.unlock();
  if (leftover) threads_.wake_rank();
}

ProgressThreads::ProgressThreads(const EngineParts& parts, ProcessSets& sets, Progress& progress)
    : parts_(parts),
      sets_(sets),
      progress_(progress),
      wakeup_flags_(parts_.world.control_block->wakeup_flags()),
      local_rank_(parts_.world.control_block->local_rank()) {}

void ProgressThreads::start() {
  thread_ = std::thread([this] { run(); });
}

void ProgressThreads::stop() {
  stopping_.store(true);
  if (!thread_.joinable()) return;
  wakeup_flags_.wake_engine();
  thread_.join();
}

bool ProgressThreads::try_step() {
  bool progress = false;
  if (!progress_.lock().try_lock()) return false;
  {
    const LockGuard lock(progress_.lock(), std::adopt_lock);
    if (stopping_.load()) return false;
    progress = progress_.step();
    if (!progress) progress_.check_timeouts(now());
  }
  sets_.report_stalls();
  return progress;
}

void ProgressThreads::run() {
  // The default slack of 50 us would be added to each pause between two polls.
  ::prctl(PR_SET_TIMERSLACK, 1000UL);
  ask_for_short_slices();
  Duration idle_since = now();
  while (!stopping_.load()) {
    bool progress = false;
    {
      const LockGuard lock(progress_.lock());
      progress = progress_.step();
    }
    if (progress) {
      idle_since = now();
    } else {
      sets_.report_stalls();
      pause(idle_since);
    }
  }
}

void ProgressThreads::pause(Duration idle_since) {
  bool spins = false;
  {
    const LockGuard lock(progress_.lock());
    const Duration time = now();
    progress_.check_timeouts(time);
    spins = progress_.spins(time - idle_since, waiters_.load() > 0);
  }
  if (spins) {
    std::this_thread::yield();
    return;
  }
  wakeup_flags_.sleep(WakeupFlags::Sleeper::engine, [&] {
    // A caller may have made progress since.
    const LockGuard lock(progress_.lock());
    const Duration time = now();
    const auto length = progress_.sleep_length(time, time - idle_since, waiters_.load() > 0);
    return stopping_.load() ? WakeupFlags::kNoSleep : length;
  });
}

void ProgressThreads::await(const Submission& submission) {
  Turn turn(*this);
  await(submission, turn);
}

void ProgressThreads::await(const Submission& submission, Turn& turn) {
  const TracedWait blocked(submission);
  std::optional<Duration> begin;  // of another thread's turn
  while (!submission.finished()) {
    if (!turn.take()) {
      const Duration time = now();
      if (time - begin.value_or(time) > parts_.settings.spin) break;
      if (!begin) begin = time;
      std::this_thread::yield();
      continue;
    }
    progress_.lock().assert_held();
    step_until_finished_or_asked(submission);
    if (submission.finished()) break;
    turn.leave();
    begin = now();
  }
  turn.leave();
  if (submission.finished()) return;
  // Another thread makes progress, and the engine thread after it, which may be in a pause between
  // two polls: now a thread is blocked.
  waiters_.fetch_add(1);
  if (parts_.world.topology.nodes() > 1) wake_rank();
  block_until_finished(submission);
  waiters_.fetch_sub(1);
}

bool ProgressThreads::await_for(const Submission& submission, Duration timeout) {
  if (submission.finished()) return true;
  const TracedWait blocked(submission);
  waiters_.fetch_add(1);
  if (parts_.world.topology.nodes() > 1) wake_rank();
  const Duration begin = now();
  Duration waited{};
  do {
    if (!has_thread()) {
      if (!try_step()) std::this_thread::yield();
    } else if (waited < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      // An atomic's wait() has no time limit.
      std::this_thread::sleep_for(std::min({waited / 8, kLongestTimedPoll, timeout - waited}));
    }
    waited = now() - begin;
  } while (!submission.finished() && waited < timeout);
  waiters_.fetch_sub(1);
  return submission.finished();
}

void ProgressThreads::block_until_finished(const Submission& submission) {
  SeenWait seen(status(), submission);
  seen.begin();
  while (!submission.finished()) {
    if (has_thread()) {
      submission.state.wait(Submission::kPending, std::memory_order_acquire);
    } else if (!try_step()) {
      std::this_thread::yield();
    }
  }
}

void ProgressThreads::step_until_finished_or_asked(const Submission& submission) {
  // Yielding may cost a whole time slice of an unrelated process.
  const Duration spinning = parts_.has_core ? Duration(parts_.settings.spin) : kBriefly;
  SeenWait seen(status(), submission);
  Duration time = now();
  Duration idle_since = time;
  while (!submission.finished() && !progress_.lock().is_asked_for()) {
    if (progress_.step(time)) {
      if (submission.finished()) break;
      idle_since = time = now();
      continue;
    }
    time = now();
    const Duration idle = time - idle_since;
    if (idle < spinning) {
      spin_pause();
    } else if (idle < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      progress_.check_timeouts(time);
      seen.begin();
      const PreciseSleep precise;
      wakeup_flags_.sleep(WakeupFlags::Sleeper::caller, [&] {
        progress_.lock().assert_held();
        const auto length = progress_.sleep_length(time, idle, /*awaited=*/true);
        const bool leaves = submission.finished() || progress_.lock().is_asked_for();
        return leaves ? WakeupFlags::kNoSleep : length;
      });
      sets_.report_stalls();
      time = now();
    }
  }
}

}  // namespace hora::internal
