/// Carries submissions to their completion.
#pragma once

#include <hora/context.h>
#include <hora/error.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/sync.h"
#include "core/engine/parts.h"
#include "core/engine/process_sets.h"
#include "core/engine/progress.h"
#include "core/engine/progress_lock.h"
#include "core/engine/progress_threads.h"
#include "core/engine/submission.h"

namespace hora::internal {

/// Errors of collectives that no call has thrown. Keeps the first one for shutdown(), unless the
/// application has got another: it knows then that something failed. Thread rule: any thread.
class UnreportedError {
 public:
  /// An error has been thrown to the application.
  void reported() noexcept { reported_.store(true); }
  void keep(const Error& error) {
    const LockGuard lock(mutex_);
    if (!first_) first_ = detached(error);
  }
  std::optional<Error> get() const {
    const LockGuard lock(mutex_);
    return first_ && !reported_.load() ? std::optional(detached(*first_)) : std::nullopt;
  }

 private:
  std::atomic<bool> reported_{false};
  mutable Mutex mutex_;
  std::optional<Error> first_ HORA_GUARDED_BY(mutex_);
};

/// The engine of one rank, as its context and handles call it. Nothing but wait, wait_for,
/// submit_and_wait, join, add_set, remove_set and depart waits for peers, whichever thread makes
/// progress. Thread rule: start_thread, depart, stop: one thread; all others: any thread.
class Engine {
 public:
  explicit Engine(EngineParts parts);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start_thread() { threads_.start(); }

  /// Copies data that peers cannot see to where they can, and announces it at once (on a device as
  /// ready when the stream has reached it). Throws what collectives.h says of submitting calls.
  std::shared_ptr<Submission> submit(Request&& request, ProcessSet set = kWorld);
  std::shared_ptr<Submission> submit(std::string_view name, Signature signature, std::byte* data,
                                     void* stream = nullptr) {
    return submit({name, std::move(signature), data, stream});
  }
  /// submit() and wait(), without waking this rank's engine.
  void submit_and_wait(Request&& request, ProcessSet set = kWorld);
  void submit_and_wait(std::string_view name, Signature signature, std::byte* data,
                       void* stream = nullptr) {
    submit_and_wait({name, std::move(signature), data, stream});
  }
  /// Returns when finished; copies results out; throws the submission's error. Frees the name.
  void wait(Submission& submission);
  /// wait(), and until the result is there: of a device, blocks the host for it. Throws, too, where
  /// the engine has failed meanwhile: the collective was aborted, and its result is undefined.
  void synchronize(Submission& submission);
  /// Returns after `timeout` at the latest: whether it is finished. Frees nothing.
  bool wait_for(const Submission& submission, Duration timeout) {
    return threads_.await_for(submission, timeout);
  }
  /// wait() for a dropped handle: an error is kept for unreported_error().
  void drop(Submission& submission);
  /// The error of a collective that has failed, while no call has thrown any error.
  std::optional<Error> unreported_error() const { return unreported_.get(); }
  /// Waits for what this rank has in flight on the set, then for every rank of it to join,
  /// contributing nothing meanwhile. Returns the last rank to join.
  int join(ProcessSet set);
  /// Releases a submission whose handle an exception has dropped. Its memory may be freed when this
  /// returns: after a round of the thread that makes progress at most, but where messages between
  /// nodes use the memory already, when those have ended.
  void orphan(const std::shared_ptr<Submission>& submission);

  /// A new process set of these world ranks (ascending). Collective over the world; throws the same
  /// Error(mismatch) on every rank where they differ.
  ProcessSet add_set(const std::vector<int>& ranks) {
    return sets_.add(ranks, [this](Request request) { return carry_out(std::move(request)); });
  }
  /// Collective over the world. Throws Error(invalid_use) while this rank has collectives of the
  /// set in flight.
  void remove_set(ProcessSet set) {
    sets_.remove(set, [this](Request request) { return carry_out(std::move(request)); });
  }
  /// Its world ranks, ascending; valid as long as the engine. Throws Error(invalid_argument) for a
  /// set that does not exist, or was removed.
  const std::vector<int>& ranks_of(ProcessSet set) const { return sets_.ranks_of(set); }

  /// Whether it runs on the engine's device (signature.h). Throws what submitting would.
  bool runs_on_device(const Request& request, ProcessSet set) const;
  /// Memory for buffers on the device. Throws Error(out_of_memory).
  std::byte* allocate_on_device(std::size_t bytes);
  /// Waits for the device. Any thread without the progress lock.
  void release_on_device(std::byte* data) noexcept;

  /// Makes the progress that is possible; for engines without a thread. Does nothing where another
  /// thread makes progress, or after stop().
  bool progress() { return threads_.try_step(); }
  bool has_thread() const { return threads_.has_thread(); }

  /// What the program is doing from here on. Any thread.
  void note_phase(std::string_view phase) noexcept { sets_.note_phase(phase); }
  /// Waits for what is in flight, announces that this rank departs, and returns when all have.
  void depart();
  /// Ends the job's engines, on all nodes, with this error, unless there is an earlier cause: from
  /// the next step of any of them on, this rank's included. Waits for no lock, and some tenths of a
  /// second for all to hear of it before this process ends.
  void end_all(const Error& error) noexcept;
  /// Whether some rank's log has the first cause, and `text` holds it. Any thread.
  bool is_logged(const std::string& text) const { return progress_.is_logged(text); }
  /// Ends the thread.
  void stop() { threads_.stop(); }
  /// After stop(): frees the process sets' communicators.
  void disconnect_sets() { sets_.disconnect(); }

  /// After stop(): a table of who came last to the collectives of the world, and how late; empty
  /// but on the root.
  std::string arrivals_text() const;
  Statistics statistics() const { return sets_.statistics(); }
  bool poisoned() const { return sets_.poisoned().load(); }
  /// The first cause, where poisoned().
  std::optional<Error> failure() const { return progress_.failure(); }
  /// Where the first cause is another rank's, returns when that rank's process has ended, if it is
  /// of this host, or some tenths of a second later: the first rank that ends is the one whose
  /// status the job has, and MPI ends all others, with their guards, at once.
  void await_failed_rank() const;

 private:
  void collect(Submission& submission);
  /// Throws what collect() does.
  int carry_out(Request request);
  void wait_until(const std::function<bool()>& reached);
  std::vector<std::shared_ptr<Submission>> uncollected() const;

  EngineParts parts_;
  ProgressLock progress_lock_;
  ProcessSets sets_;
  Progress progress_;
  ProgressThreads threads_;
  UnreportedError unreported_;
};

}  // namespace hora::internal
