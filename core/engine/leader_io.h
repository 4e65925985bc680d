/// A leader's connections: mail and arrivals of its node in, messages of other nodes in and out,
/// decisions into the node's log.
#pragma once

#include <hora/error.h>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/control_block/node_control_block.h"
#include "core/engine/interfaces.h"
#include "core/messages/messages.h"
#include "core/negotiation/leader.h"

namespace hora::internal {

/// A neighbour in the tree of leaders has sent why its node has ended.
class EndedElsewhere final : public Error {
 public:
  using Error::Error;
  explicit EndedElsewhere(const Error& error)
      : Error(error.code(), std::string(error.what()), error.rank(), error.tensor()) {}
};

/// Thread rule: the thread that holds the engine's progress lock.
class LeaderIo {
 public:
  /// `tree` is null in jobs of one node; `remark`: see IdUse.
  LeaderIo(const Topology& topology, int node, int id_capacity, NodeControlBlock& control_block,
           TreeLink* tree, ProcessSet set = kWorld, Duration warning_interval = {},
           std::function<std::string(int)> remark = {});

  /// Handles what has come in; true if there was anything. Throws Error(transport) for an invalid
  /// message, and EndedElsewhere.
  bool work(Duration now);
  /// Tells the neighbours in the tree why this node ends, as far as they can be reached within some
  /// milliseconds.
  void send_end(const Error& error) noexcept;
  /// True while messages to other nodes are on their way, or decisions wait for room in the log.
  bool unfinished();
  /// work() would find what a rank of this node has announced.
  bool has_pending_work() const;
  /// The root's, since the last call: ids that run, and who came last to them.
  std::vector<std::pair<Id, LastArrival>> take_arrivals() {
    if (arrivals_.empty()) return {};
    return std::exchange(arrivals_, {});
  }
  /// The root's, likewise: what has run out of time on some rank.
  std::vector<Expired> take_expired() {
    if (expired_.empty()) return {};
    return std::exchange(expired_, {});
  }
  std::optional<Duration> deadline() const { return leader_.deadline(); }
  Presence presence_of(const std::string& name) const { return leader_.presence_of(name); }

 private:
  /// An id that some ranks of the node are ready for while others report its name.
  struct WatchedId {
    Id id;
    LocalRanks seen;  ///< who was ready when the leader has looked last
  };

  bool read_mail(Duration now);
  bool read_arrivals();
  bool read_tree(Duration now);
  void look_at_watched();
  bool has_output(Duration now) const;
  bool hand_out(Duration now);
  void prepare_control_block(const Decision& decision);
  void to_log(const Decision& decision);
  void read(const TreeLink::Received& received, Duration now);
  bool flush_log();

  int parent_;
  std::vector<int> children_;
  MessageLimits limits_;
  NodeControlBlock& control_block_;
  TreeLink* tree_;
  Leader leader_;
  std::vector<WatchedId> watched_;
  bool has_more_ = true;  ///< the leader may have more to hand out than it has
  std::deque<Decision> for_log_;
  const std::vector<int> local_ranks_;  ///< world ranks
  std::vector<std::pair<Id, LastArrival>> arrivals_;
  std::vector<Expired> expired_;
};

}  // namespace hora::internal
