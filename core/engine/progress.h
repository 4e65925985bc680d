/// The progress of a rank's engine: the lock of the thread that makes it, the process sets in which
/// it is made, and which thread does so: the engine's own, or one that waits for a result.
#pragma once

#include "core/engine/set_engine.h"

namespace hora::internal {

/// A thread that waits for a result makes progress until it has it: it takes the lock by
/// try_lock(), and releases it where is_asked_for() after a round, as that may take long. The
/// engine thread holds it for a round, by lock(), which waits for such threads; calls that do not
/// wait for peers by lock_between_rounds(), which has priority. Thread rule: any thread.
class HORA_CAPABILITY("progress lock") ProgressLock {
 public:
  /// `wakeup_flags`, which outlive it, wake a progress thread that sleeps, rank `rank` there.
  ProgressLock(const WakeupFlags& wakeup_flags, int rank)
      : wakeup_flags_(wakeup_flags), rank_(rank) {}

  // The capability is the mutex, which the analysis cannot know.
  void lock() HORA_ACQUIRE() HORA_NOT_ANALYSED {
    while (is_asked_for()) std::this_thread::yield();
    mutex_.lock();
  }
  void lock_between_rounds() HORA_ACQUIRE() HORA_NOT_ANALYSED {
    if (mutex_.try_lock()) return;
    asking_.fetch_add(1, kWakeOrder);
    wakeup_flags_.signal(rank_);
    mutex_.lock();
    asking_.fetch_sub(1, kWakeOrder);
  }
  /// False also where it is free, but asked for.
  bool try_lock() HORA_TRY_ACQUIRE(true) HORA_NOT_ANALYSED {
    return !is_asked_for() && mutex_.try_lock();
  }
  void unlock() HORA_RELEASE() HORA_NOT_ANALYSED { mutex_.unlock(); }
  /// Tells the analysis what it cannot follow.
  void assert_held() const HORA_ASSERT_HELD() {}

  /// A thread waits in lock_between_rounds(). Checked also after a sleep is announced.
  bool is_asked_for() const { return asking_.load(kWakeOrder) > 0; }

 private:
  const WakeupFlags& wakeup_flags_;
  const int rank_;
  Mutex mutex_;
  std::atomic<int> asking_{0};
};

/// The process sets of one rank. A change is a collective of the world without data: when it is
/// decided, every rank makes the same change, in the same order. Thread rule, beside each part.
class ProcessSets {
 public:
  /// Submits to the world, waits for the end, and returns Operation::number.
  using Collective = std::function<int(Request)>;

  /// `parts` outlive it. `agree`: for add() and remove().
  explicit ProcessSets(const EngineParts& parts, Collective agree = {});

  // Any thread.
  SetEngine& world() const { return *world_; }
  /// Peers may still touch memory: none is freed.
  std::atomic<bool>& aborted() const { return aborted_; }
  /// Throws Error(invalid_argument), which names `tensor`, where this rank cannot submit to it.
  SetEngine& engine_of(ProcessSet set, std::string_view tensor = {}) const;
  /// Its world ranks, ascending; valid as long as this. Throws Error(invalid_argument), which names
  /// `tensor`, for a set that does not exist, or was removed.
  const std::vector<int>& ranks_of(ProcessSet set, std::string_view tensor = {}) const;
  /// A new process set of these world ranks (ascending). Collective over the world; throws the same
  /// Error(mismatch) on every rank where they differ.
  ProcessSet add(const std::vector<int>& ranks);
  /// Collective over the world. Throws Error(invalid_use) while this rank has some in flight there.
  void remove(ProcessSet set);
  /// Those of which this rank is a member.
  std::vector<SetEngine*> all(bool removed_too = true) const;
  /// Summed over all sets, removed ones included.
  Statistics statistics() const;
  /// Frees communicators, when nothing makes progress any more.
  void disconnect();

  // The holder of the progress lock, as changes are decided.
  /// The next set's.
  ProcessSet next_id() const {
    const SharedGuard lock(sets_lock_);
    return ProcessSet(static_cast<std::uint32_t>(sets_.size()));
  }
  /// Enters that set, whose parts are ready. Returns its engine, null where this rank is no member.
  SetEngine* enter(const SetPlan& plan, std::unique_ptr<SetTransport> transport);
  /// Closes a set that is removed. Returns its engine, or null.
  SetEngine* close(std::size_t number);

 private:
  /// A process set, whether this rank is in it or not. Its engine, once made, stays until the end,
  /// because handles refer to it; a removed one is closed.
  struct Set {
    std::vector<int> ranks;
    std::unique_ptr<SetTransport> transport;  ///< before the engine: outlives it
    std::unique_ptr<SetEngine> engine;        ///< null where this rank is no member
    bool removed = false;
  };
  /// Throws Error(invalid_argument), which names `tensor`, where there is none (any more).
  const Set& known(ProcessSet set, std::string_view tensor = {}) const
      HORA_REQUIRES_SHARED(sets_lock_);

  const EngineParts& parts_;
  const Collective agree_;
  mutable std::atomic<bool> aborted_{false};
  Mutex call_lock_;  ///< one change at a time, to its end

  mutable SharedMutex sets_lock_;  ///< written by holders of the progress lock alone
  std::vector<std::unique_ptr<Set>> sets_ HORA_GUARDED_BY(sets_lock_);
  SetEngine* world_ = nullptr;  ///< set 0's, from construction on
};

/// How long to pause between two polls of the network, `idle` after the last progress: at most an
/// eighth of that; from 1 ms on at most a 200th; never more than 10 ms.
Duration pause_between_polls(Duration idle);

class Wait;

/// Guards all that makes progress by its lock, whose holder alone may call MPI. Thread rule: start
/// and stop: one thread; what requires the lock: its holder; else any thread.
class Progress {
 public:
  /// Both outlive it.
  Progress(const EngineParts& parts, ProcessSets& sets);
  ~Progress() { stop(); }

  ProgressLock& lock() HORA_RETURNS_LOCK(lock_) { return lock_; }

  /// Starts the engine's thread.
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  bool has_thread() const { return thread_.joinable(); }
  /// Ends the thread. Nothing makes progress from then on.
  void stop();
  void wake_thread() const { wakeup_flags_.wake_engine(); }
  /// One step; false where another thread makes progress, and after stop().
  bool try_step();

  /// A thread's turn to make progress in the engine thread's place (ProgressLock), from take() on.
  class Turn {
   public:
    explicit Turn(Progress& progress) : progress_(progress) {}
    ~Turn() { leave(); }

    /// False where another thread makes progress or is about to, and after stop().
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

  /// Makes the progress that is possible now; true if there was any. Errors of transports abort the
  /// engine: everything fails. The node's first one is published to all its ranks and sent to the
  /// other nodes, and aborts their engines, too.
  bool step(Duration time = now()) HORA_REQUIRES(lock_);
  /// Something is under way that needs more steps, announced or not.
  bool is_unfinished() HORA_REQUIRES(lock_);
  bool messages_left() const HORA_REQUIRES(lock_);
  /// How long to sleep, for a thread that has announced it; peers wake it from then on. `awaited`:
  /// a thread is blocked until there is a result.
  WakeupFlags::SleepLength sleep_length(Duration time, Duration idle, bool awaited)
      HORA_REQUIRES(lock_);

 private:
  /// An error that may follow from another one, which holds if it is known by then.
  struct Suspicion {
    Error error;
    Duration until;
  };
  /// A decided change of the process sets.
  struct Change {
    std::shared_ptr<Operation> operation;
    // Once the addition of a set has begun:
    SetPlan plan = {};
    std::unique_ptr<SetTransport> transport = nullptr;
  };
  enum class Origin { here, elsewhere };

  template <class Predicate>
  bool any(Predicate&& holds) const HORA_REQUIRES(lock_) {
    return std::ranges::any_of(engines_, holds);
  }
  bool advance(Duration time) HORA_REQUIRES(lock_);
  bool advance_changes() HORA_REQUIRES(lock_);
  bool advance_addition(Change& change) HORA_REQUIRES(lock_);
  bool look_for_cause(Duration time) HORA_REQUIRES(lock_);
  void suspect(const PeerFailure& failure, Duration time) HORA_REQUIRES(lock_);
  void abort(const Error& error, Origin origin) HORA_REQUIRES(lock_);
  void withdraw() HORA_REQUIRES(lock_);
  FirstCause& first_cause() const { return parts_.world.control_block->first_cause(); }
  void check_timeouts(Duration time) HORA_REQUIRES(lock_);
  bool has_pending_work() const HORA_REQUIRES(lock_);
  bool data_travels() const HORA_REQUIRES(lock_);
  bool must_poll() HORA_REQUIRES(lock_);
  bool spins(Duration idle, bool awaited) HORA_REQUIRES(lock_);

  void run();
  void pause(Duration idle_since);
  bool await_others(const Operation& operation, Duration timeout);
  void step_until_finished_or_asked(const Operation& operation, Wait& wait) HORA_REQUIRES(lock_);
  void wake_rank() const { wakeup_flags_.signal(local_rank_); }

  const EngineParts& parts_;
  ProcessSets& sets_;
  const WakeupFlags& wakeup_flags_;
  const int local_rank_;
  ProgressLock lock_;
  /// The sets in use on this rank. Making progress in one can add to the list.
  std::vector<SetEngine*> engines_ HORA_GUARDED_BY(lock_);
  std::deque<Change> changes_ HORA_GUARDED_BY(lock_);
  bool device_busy_ HORA_GUARDED_BY(lock_) = false;
  std::optional<Suspicion> suspicion_ HORA_GUARDED_BY(lock_);
  std::atomic<int> waiters_{0};  ///< threads blocked in await()
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hora::internal
