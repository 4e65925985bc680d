/// Engine: the thread, and how long it pauses.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "core/engine/engine.h"

namespace hora {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// A pause is at most this share of the time already waited, so polling late never costs more than
/// an eighth of the wait, and a long wait costs little CPU.
constexpr int kBackoffShare = 8;
constexpr Duration kLongestPoll = milliseconds(1);
/// While data travels, MPI moves it only when polled.
constexpr Duration kLongestDataPoll = microseconds(100);
/// A leader with nothing to do still hears of shutdowns and errors of other nodes.
constexpr Duration kIdlePoll = milliseconds(100);
/// Failures of what runs on a device are looked for this often.
constexpr Duration kDevicePoll = milliseconds(10);
/// The first pause while no thread is blocked in wait(): polling hot beside a computing main thread
/// would use up this thread's share of the core, and delay it later by a whole time slice.
constexpr Duration kFirstPause = microseconds(10);
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

}  // namespace

void Engine::run_thread() {
  // The default slack of 50 us would be added to each pause between two polls.
  ::prctl(PR_SET_TIMERSLACK, 1000UL);
  ask_for_short_slices();
  Duration idle_since = now();
  while (!stopping_.load()) {
    bool progress = false;
    {
      const LockGuard lock(progress_lock_);
      progress = make_progress();
    }
    if (progress) {
      idle_since = now();
    } else {
      report_stalls();
      idle_wait(now() - idle_since);
    }
  }
}

void Engine::idle_wait(Duration idle) {
  std::optional<std::chrono::nanoseconds> pause;
  {
    const LockGuard lock(progress_lock_);
    pause = pause_length(idle, waiters_.load() > 0);
    await_done();
  }
  if (pause && pause->count() == 0) {
    std::this_thread::yield();
    return;
  }
  wakeup_flags_.sleep(WakeupFlags::Sleeper::engine, pause, [&] {
    const LockGuard lock(progress_lock_);
    return has_pending_work() || stopping_.load();
  });
}

/// Holding the progress lock. `awaited`: a thread is blocked until there is a result.
std::optional<std::chrono::nanoseconds> Engine::pause_length(Duration idle, bool awaited) {
  if (poisoned()) return std::nullopt;
  const bool leads_several =
      std::any_of(engines_.begin(), engines_.end(), [](auto* e) { return e->leads_several(); });
  if (must_poll()) {
    const Duration longest = data_travels() ? kLongestDataPoll : kLongestPoll;
    if (!awaited) return std::clamp<Duration>(idle / kBackoffShare, kFirstPause, longest);
    if (idle < parts_.settings.spin) return std::chrono::nanoseconds(0);
    return std::min<Duration>(idle / kBackoffShare, longest);
  }
  // Peers finish the unit that this rank has finished at about the same time.
  if (is_running() && idle < parts_.settings.spin / 10) return std::chrono::nanoseconds(0);
  Duration pause = leads_several ? kIdlePoll : kOverdueTick;
  if (device_busy_) pause = kDevicePoll;
  for (const SetEngine* engine : engines_) {
    if (const auto deadline = engine->deadline()) {
      pause = std::clamp<Duration>(*deadline - now(), microseconds(100), pause);
    }
  }
  return pause;
}

}  // namespace hora
