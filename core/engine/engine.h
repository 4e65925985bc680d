/// Turns submissions into fulfilled handles.
#pragma once

#include <hora/context.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/parts.h"
#include "core/engine/progress_lock.h"
#include "core/engine/set_engine.h"
#include "core/engine/submission.h"
#include "core/engine/unreported_error.h"
#include "core/thread_safety.h"

namespace hora {

/// All process sets of one rank, and the thread that makes progress for them. The progress lock
/// guards everything that makes progress (logs, leaders, data paths); its holder makes progress,
/// and it alone may call MPI: the engine thread, or a thread that waits for a result. Nothing but
/// wait, submit_and_wait, join, add_set, remove_set and depart waits for peers, whichever thread
/// makes progress. Thread rule: start, depart, stop: one thread; all others: any thread.
class Engine {
 public:
  explicit Engine(EngineParts parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start_thread();

  /// Copies data that peers cannot see to where they can, and announces it at once (on a device as
  /// ready when the stream has reached it). Throws what collectives.h says of submitting calls.
  std::shared_ptr<Submission> submit(Request request, ProcessSet set = 0);
  std::shared_ptr<Submission> submit(std::string name, Signature signature, std::byte* data,
                                     void* stream = nullptr) {
    return submit({std::move(name), std::move(signature), data, stream});
  }
  /// submit() and wait(), without waking this rank's engine.
  void submit_and_wait(Request request, ProcessSet set = 0);
  void submit_and_wait(std::string name, Signature signature, std::byte* data,
                       void* stream = nullptr) {
    submit_and_wait({std::move(name), std::move(signature), data, stream});
  }
  /// Returns when finished; copies results out; throws the submission's error. Frees the name.
  void wait(Submission& submission);
  /// wait() for a dropped handle: an error is kept for unreported_error().
  void drop(Submission& submission);
  /// The error of a collective that has failed, while no call has thrown any error.
  std::optional<Error> unreported_error() const { return unreported_.get(); }
  /// Waits for what this rank has in flight on the set, then for every rank of it to join,
  /// contributing nothing meanwhile. Returns the last rank to join.
  int join(ProcessSet set);
  /// Releases a submission whose handle an exception has dropped.
  void orphan(const std::shared_ptr<Submission>& submission) {
    submission->set->orphan(submission);
  }

  /// A new process set of these world ranks (ascending). Collective over the world; throws the same
  /// Error(mismatch) on every rank where they differ.
  ProcessSet add_set(const std::vector<int>& ranks);
  /// Collective over the world. Throws Error(invalid_use) while this rank has collectives of the
  /// set in flight.
  void remove_set(ProcessSet set);
  /// Its world ranks, ascending; valid as long as the engine. Throws Error(invalid_argument) for a
  /// set that does not exist, or was removed.
  const std::vector<int>& ranks_of(ProcessSet set) const;

  /// Whether it runs on the engine's device (signature.h). Throws what submitting would.
  bool runs_on_device(const Request& request, ProcessSet set) const;
  /// Memory for buffers on the device. Throws Error(out_of_memory).
  std::byte* allocate_on_device(std::size_t bytes);
  void release_on_device(std::byte* data) noexcept;

  /// Makes what progress is possible; for engines without a thread. Does nothing where another
  /// thread makes progress, or after stop().
  bool progress();
  bool has_thread() const { return thread_.joinable(); }

  /// Waits for what is in flight, announces that this rank departs, and returns when all have.
  void depart();
  /// Ends the thread.
  void stop();
  /// After stop(): frees the process sets' communicators.
  void disconnect_sets();

  Statistics statistics() const;
  bool poisoned() const { return shared_.poisoned.load(); }

 private:
  /// A process set, whether this rank is in it or not. Its engine, once made, stays until the end,
  /// because handles refer to it; a removed one is closed.
  struct Set {
    std::vector<int> ranks;
    std::unique_ptr<SetTransport> transport;  ///< before the engine: outlives it
    std::unique_ptr<SetEngine> engine;        ///< null where this rank is no member
    bool removed = false;
  };
  struct SetsChange {
    std::shared_ptr<Submission> submission;
    SetPlan plan;  ///< of a set that is added
    std::unique_ptr<SetTransport> transport;
  };

  // sets
  SetEngine& world() const { return *world_; }
  // Both throw Error(invalid_argument), which names `tensor`: known_set where there is no such set
  // (any more), set_engine also where this rank cannot submit to it.
  SetEngine& set_engine(ProcessSet set, const std::string& tensor = {}) const;
  const Set& known_set(ProcessSet set, const std::string& tensor = {}) const
      HORA_REQUIRES_SHARED(sets_lock_);
  std::vector<ProcessSet> waits_on(const std::string& name) const HORA_REQUIRES(progress_lock_);
  ProcessSet change_sets(Request request);
  void on_sets_change(std::shared_ptr<Submission> submission) HORA_REQUIRES(progress_lock_);
  bool advance_sets_changes() HORA_REQUIRES(progress_lock_);
  void add(SetsChange& change) HORA_REQUIRES(progress_lock_);
  void remove(SetsChange& change) HORA_REQUIRES(progress_lock_);

  // making progress
  bool make_progress() HORA_REQUIRES(progress_lock_);
  bool advance() HORA_REQUIRES(progress_lock_);
  void poison(const Error& error) HORA_REQUIRES(progress_lock_);
  bool has_pending_work() const HORA_REQUIRES(progress_lock_);
  bool is_running() const HORA_REQUIRES(progress_lock_);
  bool data_travels() const HORA_REQUIRES(progress_lock_);
  bool must_poll() HORA_REQUIRES(progress_lock_);
  void await_done() HORA_REQUIRES(progress_lock_);
  void report_stalls();

  // waiting
  class ProgressGuard;
  void collect(Submission& submission);
  static Error named(const Submission& failed);
  void await(const Submission& submission);
  void await(const Submission& submission, ProgressGuard& guard);
  void progress_until_finished_or_asked(const Submission& submission) HORA_REQUIRES(progress_lock_);
  void block_until_finished(const Submission& submission);
  void run_thread();
  void idle_wait(Duration idle);
  std::optional<std::chrono::nanoseconds> pause_length(Duration idle, bool awaited)
      HORA_REQUIRES(progress_lock_);

  EngineParts parts_;
  const WakeupFlags& wakeup_flags_;
  const bool single_node_;
  EngineShared shared_;

  mutable SharedMutex sets_lock_;  ///< written with the progress lock held, too
  std::vector<std::unique_ptr<Set>> sets_ HORA_GUARDED_BY(sets_lock_);
  SetEngine* world_ = nullptr;  ///< set 0's, from construction on
  Mutex sets_call_lock_;        ///< one add_set or remove_set at a time

  ProgressLock progress_lock_;
  std::vector<SetEngine*> engines_ HORA_GUARDED_BY(progress_lock_);  ///< of this rank's sets
  std::deque<SetsChange> sets_changes_ HORA_GUARDED_BY(progress_lock_);
  bool device_busy_ HORA_GUARDED_BY(progress_lock_) = false;

  UnreportedError unreported_;
  std::atomic<int> waiters_{0};  ///< this rank's threads blocked in wait()
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hora
