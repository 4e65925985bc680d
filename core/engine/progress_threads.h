/// Which threads make progress: the engine's own, and those that wait for results.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "core/engine/progress.h"

namespace hora::internal {

/// Thread rule: start and stop: one thread; all others: any thread.
class ProgressThreads {
 public:
  /// All outlive it.
  ProgressThreads(const EngineParts& parts, ProcessSets& sets, Progress& progress);
  ~ProgressThreads() { stop(); }
  ProgressThreads(const ProgressThreads&) = delete;
  ProgressThreads& operator=(const ProgressThreads&) = delete;

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
    explicit Turn(ProgressThreads& threads) : threads_(threads) {}
    ~Turn() { leave(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// False where another thread makes progress or is about to, and after stop(): what it would
    /// touch may be destroyed.
    bool take();
    void leave();

   private:
    ProgressThreads& threads_;
    std::unique_lock<ProgressLock> lock_{threads_.progress_.lock(), std::defer_lock};
  };

  /// Returns when the submission is finished.
  void await(const Submission& submission);
  void await(const Submission& submission, Turn& turn);
  /// Returns after `timeout` at the latest: whether it is finished.
  bool await_for(const Submission& submission, Duration timeout);

 private:
  void step_until_finished_or_asked(const Submission& submission) HORA_REQUIRES(progress_.lock());
  void block_until_finished(const Submission& submission);
  void run();
  void pause(Duration idle_since);
  RankStatus& status() const { return parts_.world.control_block->status(local_rank_); }
  void wake_rank() const { wakeup_flags_.signal(local_rank_); }

  const EngineParts& parts_;
  ProcessSets& sets_;
  Progress& progress_;
  const WakeupFlags& wakeup_flags_;
  const int local_rank_;
  std::atomic<int> waiters_{0};  ///< threads blocked in await()
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hora::internal
