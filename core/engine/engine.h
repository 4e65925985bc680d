/// The engine of one rank, as its context, handles and buffers call it.
#pragma once

#include "core/base/diagnostics.h"
#include "core/engine/progress.h"

namespace hora::internal {

/// Shared by the context, its handles and its buffers; never destroyed in a forked child. Calls
/// that begin something check running(), those possible after shutdown() remaining(), destructors
/// is_forked(). Thread rule: start_thread, depart, stop, shutdown: one thread; all others: any.
class Engine {
 public:
  static std::shared_ptr<Engine> make(std::unique_ptr<Transport> transport, bool engine_thread);
  /// Without a transport of its own the parts outlive it, and nobody calls shutdown() or abort().
  explicit Engine(EngineParts parts, std::unique_ptr<Transport> transport = nullptr);
  ~Engine();

  const EngineParts& parts() const { return parts_; }
  NodeMemory& memory() const { return *parts_.world.memory; }
  /// Throws Error(invalid_use) in a process forked from the rank's.
  Engine& remaining();
  /// Throws Error(shut_down) after shutdown(), and what remaining() throws.
  Engine& running();
  /// This process is a child that the rank has forked: it must not use hora.
  bool is_forked() const noexcept { return !owner_.is_this_process(); }
  bool is_shut_down() const { return shut_down_.load(); }

  void start_thread() { progress_.start(); }
  bool has_thread() const { return progress_.has_thread(); }
  /// A step, for engines without a thread; not where another thread makes one, or after stop().
  bool progress() { return progress_.try_step(); }

  /// Copies data that peers cannot see to where they can, and announces it at once (on a device as
  /// ready when the stream has reached it). Throws what collectives.h says of submitting calls.
  std::shared_ptr<Operation> submit(Request&& request, ProcessSet set = kWorld);
  /// submit() and wait(), without waking this rank's engine.
  void submit_and_wait(Request&& request, ProcessSet set = kWorld);
  /// Returns when finished; copies results out; throws the operation's error. Frees the name.
  void wait(Operation& operation);
  /// wait(), and until the result is there: of a device, blocks the host for it. Throws, too, where
  /// the engine has failed meanwhile: the collective was aborted, and its result is undefined.
  void synchronize(Operation& operation);
  /// Returns after `timeout` at the latest: whether it is finished. Frees nothing.
  bool wait_for(const Operation& operation, Duration timeout) {
    return progress_.await_for(operation, timeout);
  }
  /// wait() for a dropped handle: shutdown() throws its error.
  void drop(Operation& operation);
  /// Releases an operation whose handle an exception has dropped, after a round of the thread that
  /// makes progress or the end of messages that use its memory, which may be freed then.
  void detach(const std::shared_ptr<Operation>& operation);
  /// The error of a collective that has failed, while no call has thrown any error.
  std::optional<Error> unreported_error() const;
  /// Waits for what this rank has in flight on the set, then for every rank of it to join,
  /// contributing nothing meanwhile. Returns the last rank to join.
  int join(ProcessSet set);

  ProcessSets& sets() { return sets_; }
  /// Distinguishes objects of one kind that every rank of the set constructs in one order.
  std::uint32_t next_instance_number(ProcessSet set) {
    const LockGuard lock(mutex_);
    return instances_[set]++;
  }

  /// Whether it runs on the engine's device (messages.h). Throws what submitting would.
  bool runs_on_device(const Request& request, ProcessSet set) const {
    return sets_.engine_of(set, request.name).operations().set().on_device(request.signature);
  }
  /// Memory for buffers on the device. Throws Error(out_of_memory).
  std::byte* allocate_on_device(std::size_t bytes);
  /// Waits for the device. Any thread without the progress lock.
  void release_on_device(std::byte* data) noexcept;

  /// Peers may write to the memory of collectives that have failed, at any time.
  bool aborted() const { return sets_.aborted().load(); }
  /// Whether some rank's log has the first cause, and `text` holds it. Any thread.
  bool is_logged(const std::string& text) const {
    const auto cause = first_cause().get();
    return cause && text.find(cause->what()) != std::string::npos;
  }
  /// After stop().
  std::string arrivals_text() const { return sets_.world().arrivals_text(); }

  /// Has shutdown() call `action`, which does not throw, when no rank uses this one's memory.
  void at_shutdown(std::function<void()> action);
  /// Collective. Does nothing the second time. Throws unreported_error().
  void shutdown();
  /// The first part of shutdown(): waits for what is in flight, departs, and waits for all to.
  void depart();
  /// The second part: ends the thread.
  void stop() { progress_.stop(); }
  /// An exception ends this rank, and so the job's engines on all nodes, with this text, unless
  /// there is an earlier cause. Takes no lock; waits some tenths of a second for all to hear of it.
  void end_all(const std::string& why) noexcept;
  /// Prints why and ends the job.
  [[noreturn]] void abort(const std::string& why) noexcept;
  /// For the context's owner while an exception leaves its scope: the job ends as soon as the
  /// program could print the exception. Until then everything stays in place, as peers use it.
  static void abandon(std::shared_ptr<Engine> engine) noexcept;

 private:
  void collect(Operation& operation);
  void keep_unreported(const Error& error, const Operation& failed);
  /// The node's; some rank's log has it.
  FirstCause& first_cause() const { return parts_.world.control_block->first_cause(); }
  void wait_until(const std::function<bool()>& reached);
  [[noreturn]] void end_after_failure() noexcept;
  void await_failed_rank() const;

  const ProcessOwner owner_;
  std::unique_ptr<Transport> transport_;  ///< null: the parts are another's
  EngineParts parts_;
  ProcessSets sets_;
  Progress progress_;
  std::optional<TerminateReport> terminate_report_;
  std::atomic<bool> shut_down_{false};
  std::atomic<bool> has_thrown_{false};  ///< the application knows that something failed
  mutable Mutex mutex_;
  /// The first error of a collective that no call has thrown.
  std::optional<Error> unreported_ HORA_GUARDED_BY(mutex_);
  std::map<ProcessSet, std::uint32_t> instances_ HORA_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> at_shutdown_ HORA_GUARDED_BY(mutex_);
};

}  // namespace hora::internal
