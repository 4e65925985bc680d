/// The process sets of one rank. A change is a collective of the world without data: when it is
/// decided, every rank makes the same change, in the same order.
#pragma once

#include <hora/collectives.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/sync.h"
#include "core/engine/interfaces.h"
#include "core/engine/progress_lock.h"
#include "core/engine/set_engine.h"

namespace hora::internal {

/// Thread rule, beside each part.
class ProcessSets {
 public:
  /// Submits to the world, waits for the end, and returns Operation::number.
  using Collective = std::function<int(Request)>;

  /// Both outlive it; the lock is the engine's.
  ProcessSets(const EngineParts& parts, ProgressLock& progress_lock);
  ProcessSets(const ProcessSets&) = delete;
  ProcessSets& operator=(const ProcessSets&) = delete;

  // Any thread.
  SetEngine& world() const { return *world_; }
  void note_phase(std::string_view phase) noexcept { shared_.noted.note(phase); }
  std::atomic<bool>& aborted() { return shared_.aborted; }
  const std::atomic<bool>& aborted() const { return shared_.aborted; }
  /// Throws Error(invalid_argument), which names `tensor`, where this rank cannot submit to it.
  SetEngine& engine_of(ProcessSet set, std::string_view tensor = {}) const;
  /// See Engine.
  const std::vector<int>& ranks_of(ProcessSet set) const;
  ProcessSet add(const std::vector<int>& ranks, const Collective& agree);
  void remove(ProcessSet set, const Collective& agree);
  /// Those of which this rank is a member, removed ones included.
  std::vector<SetEngine*> all() const { return engines_in(true); }
  std::vector<SetEngine*> not_removed() const { return engines_in(false); }
  void report_stalls();
  /// Summed over all sets, removed ones included.
  Statistics statistics() const;
  /// Frees communicators, when nothing makes progress any more.
  void disconnect();

  // Holding the progress lock.
  ProgressLock& progress_lock() const HORA_RETURNS_LOCK(progress_lock_) { return progress_lock_; }
  /// Engines of the sets in use on this rank. Making progress in one can add to the list.
  const std::vector<SetEngine*>& engines() const HORA_REQUIRES(progress_lock_) { return engines_; }
  /// Makes progress with decided changes; true if one was completed.
  bool advance_changes() HORA_REQUIRES(progress_lock_);
  bool changes_are_under_way() const HORA_REQUIRES(progress_lock_) { return !changes_.empty(); }

 private:
  /// A process set, whether this rank is in it or not. Its engine, once made, stays until the end,
  /// because handles refer to it; a removed one is closed.
  struct Set {
    std::vector<int> ranks;
    std::unique_ptr<SetTransport> transport;  ///< before the engine: outlives it
    std::unique_ptr<SetEngine> engine;        ///< null where this rank is no member
    bool removed = false;
  };
  struct Change {
    std::shared_ptr<Operation> operation;
    SetPlan plan;  ///< of a set that is added
    std::unique_ptr<SetTransport> transport;
  };

  /// Throws Error(invalid_argument), which names `tensor`, where there is none (any more).
  const Set& known(ProcessSet set, std::string_view tensor = {}) const
      HORA_REQUIRES_SHARED(sets_lock_);
  std::vector<SetEngine*> engines_in(bool removed_too) const;
  std::vector<ProcessSet> waits_on(const std::string& name) const HORA_REQUIRES(progress_lock_);
  void on_change(std::shared_ptr<Operation> operation) HORA_REQUIRES(progress_lock_);
  bool advance_addition(Change& change) HORA_REQUIRES(progress_lock_);
  void carry_out_removal(const Change& change) HORA_REQUIRES(progress_lock_);

  const EngineParts& parts_;
  ProgressLock& progress_lock_;
  EngineShared shared_;
  Mutex call_lock_;  ///< one change at a time, to its end

  mutable SharedMutex sets_lock_;  ///< written with the progress lock held, too
  std::vector<std::unique_ptr<Set>> sets_ HORA_GUARDED_BY(sets_lock_);
  SetEngine* world_ = nullptr;  ///< set 0's, from construction on

  std::vector<SetEngine*> engines_ HORA_GUARDED_BY(progress_lock_);
  std::deque<Change> changes_ HORA_GUARDED_BY(progress_lock_);
};

}  // namespace hora::internal
