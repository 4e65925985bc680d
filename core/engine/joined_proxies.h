/// A rank that has joined takes part, with nothing, in what other ranks submit.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "core/engine/announcer.h"
#include "core/engine/name_table.h"

namespace hora {

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
  /// Other ranks of the node are ready for an id of which this rank has said nothing.
  bool are_wanted() const;
  /// Answers all such ids; true if there was any.
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

}  // namespace hora
