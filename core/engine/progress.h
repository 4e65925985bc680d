/// Makes progress in all process sets of a rank, one step at a time, and which thread does so: the
/// engine's own, or one that waits for a result.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/base/sync.h"
#include "core/engine/interfaces.h"
#include "core/engine/process_sets.h"
#include "core/engine/progress_lock.h"

namespace hora::internal {

/// How long to pause between two polls of the network, `idle` after the last progress: at most an
/// eighth of that; from 1 ms on at most a 200th; never more than 10 ms.
Duration pause_between_polls(Duration idle);

/// The progress lock guards everything that makes progress (logs, leaders, data paths); its holder
/// alone may call MPI. Thread rule: start and stop: one thread; what requires the lock: its holder;
/// all others: any thread.
class Progress {
 public:
  /// All outlive it.
  Progress(const EngineParts& parts, ProcessSets& sets, ProgressLock& lock);
  ~Progress() { stop(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  ProgressLock& lock() const HORA_RETURNS_LOCK(lock_) { return lock_; }

  /// Starts the engine's thread.
  void start();
  bool has_thread() const { return thread_.joinable(); }
  /// Ends the thread. Nothing makes progress from then on.
  void stop();
  void wake_thread() const { wakeup_flags_.wake_engine(); }
  /// One step; false where another thread makes progress, and after stop().
  bool try_step();

  /// A thread's turn to make progress in the engine thread's place, from take() on, as
  /// progress_lock.h says of progress threads.
  class Turn {
   public:
    explicit Turn(Progress& progress) : progress_(progress) {}
    ~Turn() { leave(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// False where another thread makes progress or is about to, and after stop(): what it would
    /// touch may be destroyed.
    bool take();
    void leave();

   private:
    Progress& progress_;
    std::unique_lock<ProgressLock> lock_{progress_.lock(), std::defer_lock};
  };

  /// Returns when the operation is finished.
  void await(const Operation& operation);
  void await(const Operation& operation, Turn& turn);
  /// Returns after `timeout` at the latest: whether it is finished.
  bool await_for(const Operation& operation, Duration timeout);

  /// Makes the progress that is possible now; true if there was any. Errors of transports Abort
  /// the engine: everything fails, and nothing is done from then on. The first one of the node is
  /// published to all its ranks and sent to the other nodes, and aborts their engines, too.
  /// `time`: the present.
  bool step(Duration time = now()) HORA_REQUIRES(lock_);
  /// Something is under way that needs more steps, announced or not.
  bool is_unfinished() HORA_REQUIRES(lock_);
  bool messages_left() const HORA_REQUIRES(lock_);
  /// How long to sleep. Called by a thread that has announced that it sleeps; from then on peers
  /// wake it when they have finished what it waits for. `awaited`: a thread is blocked until there
  /// is a result.
  WakeupFlags::SleepLength sleep_length(Duration time, Duration idle, bool awaited)
      HORA_REQUIRES(lock_);

  /// Why this rank's engine has failed; nothing where it has not.
  std::optional<Error> failure() const;
  /// Whether `text` holds the node's first cause, which some rank's log has.
  bool is_logged(const std::string& text) const;
  /// The rank that has published the first cause; none where that is this one, and where there is
  /// no cause. -1: not the error of one rank.
  std::optional<int> failed_elsewhere() const;

 private:
  /// An error that may follow from another one, which holds if it is known by then.
  struct Suspicion {
    Error error;
    Duration until;
  };
  enum class Origin { here, elsewhere };

  const std::vector<SetEngine*>& engines() const HORA_REQUIRES(lock_);
  template <class Predicate>
  bool any(Predicate&& holds) const HORA_REQUIRES(lock_) {
    return std::ranges::any_of(engines(), holds);
  }
  bool advance(Duration time) HORA_REQUIRES(lock_);
  bool look_for_cause(Duration time) HORA_REQUIRES(lock_);
  void suspect(const PeerFailure& failure, Duration time) HORA_REQUIRES(lock_);
  void abort(const Error& error, Origin origin) HORA_REQUIRES(lock_);
  void withdraw() HORA_REQUIRES(lock_);
  FirstCause first_cause() const { return parts_.world.control_block->first_cause(); }
  void check_timeouts(Duration time) HORA_REQUIRES(lock_);
  bool has_pending_work() const HORA_REQUIRES(lock_);
  bool is_running() const HORA_REQUIRES(lock_);
  bool data_travels() const HORA_REQUIRES(lock_);
  bool must_poll() HORA_REQUIRES(lock_);
  bool spins(Duration idle, bool awaited) HORA_REQUIRES(lock_);

  void run();
  void pause(Duration idle_since);
  void step_until_finished_or_asked(const Operation& operation) HORA_REQUIRES(lock_);
  void block_until_finished(const Operation& operation);
  RankStatus& status() const { return parts_.world.control_block->status(local_rank_); }
  void wake_rank() const { wakeup_flags_.signal(local_rank_); }

  const EngineParts& parts_;
  ProcessSets& sets_;
  ProgressLock& lock_;
  const WakeupFlags& wakeup_flags_;
  const int local_rank_;
  bool device_busy_ HORA_GUARDED_BY(lock_) = false;
  std::optional<Suspicion> suspicion_ HORA_GUARDED_BY(lock_);
  std::atomic<int> waiters_{0};  ///< threads blocked in await()
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hora::internal
