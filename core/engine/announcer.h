/// How other ranks of a set learn what this one has submitted, and what it takes part in without
/// data once it has joined.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/control_block/node_control_block.h"
#include "core/engine/operations.h"
#include "core/messages/messages.h"
#include "core/trace/trace.h"

namespace hora::internal {

/// Known ids are announced by ready bits, everything else by mail to the node's leader; wakes the
/// ranks that must see it. Thread rule: guarded by the table lock of Submissions.
class Announcer {
 public:
  using Arrival = NodeControlBlock::Arrival;

  /// `control_block` and `trace` outlive it.
  Announcer(NodeControlBlock& control_block, bool single_node, const Tracer& trace)
      : control_block_(control_block), single_node_(single_node), trace_(trace) {}

  /// This rank is ready for the id since `time` (zero: a proxy), with its tensor at `where`.
  /// `resized`: see Up::resized.
  Arrival arrive(Id id, Location where, Duration time = {}, bool resized = false);
  /// Reports the submission to the leader by name.
  void report(const Submission& submission);
  /// Tells the leader that the submission has waited too long.
  void report_overdue(const Submission& submission);
  /// Tells the leader that the submission runs out of time soon.
  void report_expiring(const Submission& submission, Duration time);
  /// A hint to the leader: this rank waits under this name on `set`. Left out where there is no
  /// room.
  void hint_elsewhere(const std::string& name, ProcessSet set);
  void send(const Mail& mail);
  /// Sends mail that has found the mailbox full; true if any went.
  bool flush();
  /// Whether there is mail for flush(); to be read without a lock.
  const std::atomic<bool>& mail_waits() const { return mail_waits_; }

 private:
  void signal_joined();

  NodeControlBlock& control_block_;
  const bool single_node_;
  const Tracer& trace_;
  std::deque<std::vector<std::byte>> outbox_;  ///< mail that found the mailbox full
  std::atomic<bool> mail_waits_{false};        ///< the outbox is not empty
};

/// This rank's submissions by proxy while it has joined a set. Thread rule: guarded by the table
/// lock of Submissions.
class JoinedProxies {
 public:
  /// All outlive it. `undecided` counts this rank's submissions that wait for others.
  JoinedProxies(NodeControlBlock& control_block, NameTable& table, Announcer& announcer,
                std::atomic<int>& undecided)
      : control_block_(control_block),
        table_(table),
        announcer_(announcer),
        undecided_(undecided) {}

  /// From now on peers wake this rank when they become ready for something.
  void begin();
  /// Other ranks of the node are ready for an id that this rank has not announced.
  bool are_wanted() const;
  /// Answers all such ids, up to one of which the log is to be read first; true if there was any.
  bool submit();
  /// For a decision on what no rank of this node has submitted.
  std::shared_ptr<Submission> make(Id id, const Signature& signature);
  /// The id was decided otherwise, or given up.
  void drop(Id id);
  /// All ranks have joined.
  void end();

 private:
  bool is_wanted(Id id) const;
  bool submit(Id id, const std::string& name);

  NodeControlBlock& control_block_;
  NameTable& table_;
  Announcer& announcer_;
  std::atomic<int>& undecided_;
  /// Ids of operations that failed, or will, because this rank has joined.
  std::set<Id> refused_;
};

}  // namespace hora::internal
