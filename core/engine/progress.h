/// Makes progress in all process sets of a rank, one step at a time.
#pragma once

#include <chrono>
#include <optional>

#include "core/base/sync.h"
#include "core/engine/parts.h"
#include "core/engine/process_sets.h"
#include "core/engine/progress_lock.h"

namespace hora::internal {

/// How long to pause between two polls of the network, `idle` after the last progress: at most an
/// eighth of that; from 1 ms on at most a 200th; never more than 10 ms.
Duration pause_between_polls(Duration idle);

/// The progress lock guards everything that makes progress (logs, leaders, data paths); its holder
/// alone may call MPI. Thread rule: the holder of the lock.
class Progress {
 public:
  /// All outlive it.
  Progress(const EngineParts& parts, ProcessSets& sets, ProgressLock& lock)
      : parts_(parts), sets_(sets), lock_(lock) {}

  ProgressLock& lock() const HORA_RETURNS_LOCK(lock_) { return lock_; }

  /// Makes the progress that is possible now; true if there was any. Errors of transports poison
  /// the engine: everything fails, and nothing is done from then on. The first one of the node is
  /// published to all its ranks and sent to the other nodes, and poisons their engines, too.
  /// `time`: the present.
  bool step(Duration time = now()) HORA_REQUIRES(lock_);
  /// A step would find something to do that was announced to this rank.
  bool has_pending_work() const HORA_REQUIRES(lock_);
  /// Something is under way that needs more steps, announced or not.
  bool is_unfinished() HORA_REQUIRES(lock_);
  bool messages_left() const HORA_REQUIRES(lock_);
  /// Poisons the engine, as errors of transports do, where a collective has run out of time, or a
  /// rank that it waits for has ended or is stopped; logs what waits too long.
  void check_timeouts(Duration time) HORA_REQUIRES(lock_);
  /// After `idle` without progress, the next step comes without a pause. `awaited`: a thread is
  /// blocked until there is a result.
  bool spins(Duration idle, bool awaited) HORA_REQUIRES(lock_);
  /// How long to sleep else. Called by a thread that has announced that it sleeps; from then on
  /// peers wake it when they have finished what it waits for.
  WakeupFlags::SleepLength sleep_length(Duration time, Duration idle, bool awaited)
      HORA_REQUIRES(lock_);

  /// Why this rank's engine has failed; nothing where it has not. Any thread.
  std::optional<Error> failure() const;
  /// Whether `text` holds the node's first cause, which some rank's log has. Any thread.
  bool is_logged(const std::string& text) const;
  /// The rank that has published the first cause; none where that is this one, and where there is
  /// no cause. -1: not the error of one rank. Any thread.
  std::optional<int> failed_elsewhere() const;

 private:
  const std::vector<SetEngine*>& engines() const HORA_REQUIRES(lock_);
  bool advance(Duration time) HORA_REQUIRES(lock_);
  enum class Origin { here, elsewhere };
  void poison(const Error& error, Origin origin) HORA_REQUIRES(lock_);
  void poison_for(const PeerFailure& failure) HORA_REQUIRES(lock_);
  std::optional<Error> await_cause() HORA_REQUIRES(lock_);
  void withdraw() HORA_REQUIRES(lock_);
  FirstCause first_cause() const { return parts_.world.control_block->first_cause(); }
  bool is_running() const HORA_REQUIRES(lock_);
  bool data_travels() const HORA_REQUIRES(lock_);
  bool must_poll() HORA_REQUIRES(lock_);
  void await_done() HORA_REQUIRES(lock_);

  const EngineParts& parts_;
  ProcessSets& sets_;
  ProgressLock& lock_;
  bool device_busy_ HORA_GUARDED_BY(lock_) = false;
};

}  // namespace hora::internal
