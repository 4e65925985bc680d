/// Everything that one call of init() has created.
#pragma once

#include <hora/settings.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/diagnostics.h"
#include "core/base/process.h"
#include "core/base/sync.h"
#include "core/engine/engine.h"
#include "core/flight/record.h"

namespace hora::internal {

/// The transports of an engine, created and owned by ops.
class Transport {
 public:
  virtual ~Transport() = default;
  /// For the one engine; references stay valid as long as the transport.
  virtual EngineParts parts() = 0;
  /// Frees communicators once every rank has departed. Memory stays until destruction. Collective.
  virtual void disconnect() = 0;
  /// Ends every rank of the job without waiting for anything.
  [[noreturn]] virtual void abort() noexcept = 0;
  /// Has every rank of the job end, as a failure, when this process exits, or after `grace`;
  /// `first` is called before that.
  virtual void abort_at_exit(std::chrono::milliseconds grace, std::function<void()> first) = 0;
};

/// Shared by the context, its handles and its buffers; never destroyed in a forked child. Thread
/// rule: as Context.
///
/// All public calls pass one of two checks here: engine() and memory(), of what begins something;
/// remaining_engine() and remaining_memory(), of what is possible after shutdown() as well: to
/// release what is finished, and to query. Destructors check is_forked(), and do nothing there.
class Runtime {
 public:
  static std::shared_ptr<Runtime> make(std::unique_ptr<Transport> transport, bool engine_thread);
  ~Runtime();

  const EngineParts& parts() const { return parts_; }
  /// Throws Error(invalid_use) in a process forked from the rank's.
  void check_owner() const;
  /// Throws Error(shut_down) after shutdown(), and what check_owner() throws.
  void check_running() const;
  /// Both check_running().
  Engine& engine();
  NodeMemory& memory();
  /// Both check_owner().
  Engine& remaining_engine();
  NodeMemory& remaining_memory();
  /// This process is a child that the rank has forked: it must not use hora.
  bool is_forked() const noexcept { return !owner_.is_this_process(); }
  int node() const { return node_; }
  int local_rank() const { return local_rank_; }
  bool is_shut_down() const { return shut_down_.load(); }

  /// Distinguishes objects of one kind that every rank of the set constructs in one order.
  std::uint32_t next_instance_number(ProcessSet set);

  /// `action`, which does not throw, is called by shutdown(), when no rank uses this one's memory
  /// any more. Throws Error(shut_down) after it.
  void at_shutdown(std::function<void()> action);
  /// Collective. Does nothing the second time. Calls check_owner(). Throws
  /// Engine::unreported_error().
  void shutdown();
  /// In the flight record, and for the ledger of arrivals. Throws what check_running() does.
  void note_phase(std::string_view phase);
  /// Prints why and ends the job.
  [[noreturn]] void abort(const std::string& why) noexcept;
  /// For the context's owner while an exception leaves its scope: the job ends as soon as the
  /// program could print the exception. Until then everything stays in place, as peers use it.
  static void abandon(std::shared_ptr<Runtime> runtime) noexcept;

 private:
  Runtime(std::unique_ptr<Transport> transport, bool engine_thread);
  [[noreturn]] void end_after_failure() noexcept;
  void log_end(const std::string& why) const noexcept;
  void notify_peers(const std::string& why) noexcept;
  void note_state(RecordState state) const noexcept;

  const ProcessOwner owner_;
  std::unique_ptr<Transport> transport_;
  EngineParts parts_;
  int node_;
  int local_rank_;
  Engine engine_;
  TerminateReport terminate_report_;
  Mutex instances_lock_;
  std::map<ProcessSet, std::uint32_t> instances_ HORA_GUARDED_BY(instances_lock_);
  std::vector<std::function<void()>> at_shutdown_ HORA_GUARDED_BY(instances_lock_);
  std::atomic<bool> shut_down_{false};
};

}  // namespace hora::internal
