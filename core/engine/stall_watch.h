/// Looks at what waits too long, decided or not: which ranks lack it, and which one logs that.
#pragma once

#include <hora/error.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/deadlines.h"
#include "core/engine/interfaces.h"
#include "core/engine/leader_io.h"
#include "core/engine/operations.h"

namespace hora::internal {

/// Watches the stalls of one set on this rank. While the root answers it logs for all ranks what
/// they have not all submitted (OverdueNames). What has been decided and does not end, join() and
/// shutdown(), and what waits while the root is silent, the lowest local rank that waits logs for
/// its node, at growing intervals: from the control block it sees the other ranks of its node even
/// if they are stopped. Thread rule: the thread that holds the engine's progress lock, but for
/// state_of(): any thread.
class StallWatch {
 public:
  /// Both outlive it.
  StallWatch(const SetParts& parts, const EngineParts& engine, ProcessSet id);

  /// What this rank knows of a submission. `unit`: in which it is under way, 0: none. `leader_io`:
  /// of a leader, else null.
  TimedOut facts_of(const Submission& submission, std::uint64_t unit,
                    const LeaderIo* leader_io) const;

  /// The root's: what it has heard of one that has run out of time on some rank.
  TimedOut facts_of(const Expired& expired) const;

  /// The time to look again has come.
  bool is_due(Duration time) const { return warning_.count() > 0 && time >= next_look_; }
  /// What of this rank waits too long, for how long, and what there is to say of it.
  struct Stall {
    Duration age;
    std::function<std::string()> text;
  };
  /// What is to be logged, by this rank of its node.
  std::optional<std::string> look(Duration time, const std::optional<Stall>& stall);
  /// Of a join in which nothing has happened for this long: which ranks of this node have not
  /// called it; none where all have.
  std::optional<Stall> join_stall(Duration age) const;
  bool is_due_for_processes(Duration time) const {
    return !engine_.processes.empty() && time >= next_check_;
  }
  /// Where something waits (`any_waits`): a rank of this node whose process has ended.
  std::optional<Error> gone_rank(Duration time, bool any_waits);

  /// What is to be said of a rank of this node, by its local rank in the set.
  std::string state_of(int local_rank) const;
  /// A rank of the world.
  ProcessIdentity identity_of(int rank) const;
  /// World ranks by local rank.
  const std::vector<int>& ranks_of_node() const;

 private:
  Presence presence_of(const Submission& submission, const LeaderIo* leader_io) const;
  void note_absent(TimedOut& timed_out, const Presence& presence) const;
  TimedOut known_of(const std::string& name, const TimeLimit& limit, int rank) const;
  void add_remarks(TimedOut& timed_out, const std::vector<int>& ranks) const;

  const SetParts& parts_;
  const EngineParts& engine_;
  const ProcessSet id_;
  const Duration warning_;
  Duration next_look_{};
  Duration waits_since_{};  ///< the first look that found something; zero: none has
  Duration next_check_{};   ///< of processes
};

}  // namespace hora::internal
