/// How other ranks of a set learn what this one has submitted.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "core/control_block/node_control_block.h"
#include "core/engine/submission.h"
#include "core/messages/messages.h"
#include "core/trace/trace.h"

namespace hora {

/// Of known ids by ready bits, of everything else by mail to the node's leader; wakes who must see
/// it. Thread rule: guarded by the table lock of Submissions.
class Announcer {
 public:
  using Arrival = NodeControlBlock::Arrival;

  /// `control_block` and `trace` outlive it.
  Announcer(NodeControlBlock& control_block, bool single_node, const Tracer& trace)
      : control_block_(control_block), single_node_(single_node), trace_(trace) {}

  /// This rank is ready for the id, with its tensor at `where`.
  Arrival arrive(Id id, Location where);
  /// By name.
  void report(const Submission& submission);
  void send(const Mail& mail);
  /// Does nothing where there is no room.
  void try_send(const Mail& mail);
  /// Sends mail that has found the mailbox full; true if any went.
  bool flush();

 private:
  NodeControlBlock& control_block_;
  const bool single_node_;
  const Tracer& trace_;
  std::deque<std::vector<std::byte>> outbox_;  ///< mail that found the mailbox full
};

}  // namespace hora
