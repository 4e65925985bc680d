/// One process set's part of a rank's engine: its negotiation and its data path.
#pragma once

#include <hora/error.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/sync.h"
#include "core/control_block/node_control_block.h"
#include "core/engine/interfaces.h"
#include "core/engine/operations.h"
#include "core/engine/waits.h"
#include "core/messages/messages.h"
#include "core/negotiation/arrivals.h"
#include "core/negotiation/leader.h"
#include "core/plan/plan.h"

namespace hora::internal {

/// A neighbour in the tree of leaders has sent why its node has ended.
class EndedElsewhere final : public Error {
 public:
  using Error::Error;
  explicit EndedElsewhere(const Error& error)
      : Error(error.code(), std::string(error.what()), error.rank(), error.tensor()) {}
};

/// A leader's connections: mail and arrivals of its node in, messages of other nodes in and out,
/// decisions into the node's log. Thread rule: the thread that holds the engine's progress lock.
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
  bool read_mail(Duration now);
  bool read_arrivals();
  bool read_tree(Duration now);
  bool has_output(Duration now) const;
  bool hand_out(Duration now);
  void to_log(const Decision& decision);
  void read(const TreeLink::Received& received, Duration now);
  bool flush_log();

  int parent_;
  std::vector<int> children_;
  MessageLimits limits_;
  NodeControlBlock& control_block_;
  TreeLink* tree_;
  Leader leader_;
  bool has_more_ = true;  ///< the leader may have more to hand out than it has
  std::deque<Decision> for_log_;
  const std::vector<int> local_ranks_;  ///< world ranks
  std::vector<std::pair<Id, LastArrival>> arrivals_;
  std::vector<Expired> expired_;
};

/// The units of one set that are under way on this rank, in the order in which every rank starts
/// them. Thread rule: the thread that holds the engine's progress lock.
class Batches {
 public:
  /// All outlive it.
  Batches(const SetParts& parts, const EngineParts& engine, const Operations& operations,
          ProcessSet set)
      : parts_(parts),
        engine_(engine),
        memory_(operations.memory()),
        trace_(operations.trace()),
        record_(operations.record()),
        shares_device_(set != kWorld) {}
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  /// Fuses tensors that travel together, and passes them to the data path. Takes the batch's
  /// operations.
  void start(DecidedBatch& batch);
  bool is_running() const { return !started_.empty(); }
  bool has_completed() const {
    return !started_.empty() && started_.front().number <= parts_.control_block->done_by_all();
  }
  /// The number of the unit that is under way with this operation in it; 0: none is.
  std::uint64_t number_of(const Operation& operation) const;
  /// The operations of the oldest unit, where has_completed(); valid until pop_completed().
  std::span<const std::shared_ptr<Operation>> completed() const {
    return started_.front().operations;
  }
  std::uint64_t completed_number() const { return started_.front().number; }
  void pop_completed();

 private:
  struct Started {
    std::uint64_t number = 0;
    std::vector<std::shared_ptr<Operation>> operations;
  };

  std::size_t longest_chunk(OperationKind kind, bool on_device) const;
  void note_started(BoundUnit& unit);
  void bind(const DecidedBatch& batch, std::span<const std::shared_ptr<Operation>> operations);
  void bind_tensor(BoundUnit& bound, const TensorMemory& memory,
                   std::span<const Location> locations, bool on_host) const;
  void bind_exchange(BoundUnit& bound, const Operation& operation,
                     std::span<const Location> locations) const;

  const SetParts& parts_;
  const EngineParts& engine_;
  const SetMemory& memory_;
  const Tracer& trace_;
  const RecordWriter& record_;
  RingQueue<Started> started_;
  // Members so that start() uses their memory again.
  std::vector<const Signature*> signatures_;
  BoundUnit bound_;
  std::uint64_t number_ = 0;  ///< of the last one that was started
  bool shares_device_;        ///< from the first other process set on, in the order of units
};

class ProcessSets;

/// Carries out what the set's log says: decisions become units, and units that are complete become
/// finished operations. Thread rule: the thread that holds the engine's progress lock, but for
/// operations(), all_departed() and what never changes: any thread.
class SetEngine {
 public:
  /// `engine` and `sets`, of which it is one, outlive it.
  SetEngine(const SetParts& parts, const EngineParts& engine, ProcessSets& sets, ProcessSet id);
  SetEngine(const SetEngine&) = delete;
  SetEngine& operator=(const SetEngine&) = delete;

  NodeControlBlock& control_block() const { return control_block_; }
  /// The submitting side.
  Operations& operations() { return operations_; }
  const Operations& operations() const { return operations_; }
  /// Every rank of the set has departed.
  bool all_departed() const { return all_departed_.load(); }

  /// `time`: the present.
  bool make_progress(Duration time);
  /// The error of a collective that has run out of time by now, or of a rank that it waits for and
  /// that has ended or is stopped for too long, if any; reports what waits too long, and logs it
  /// where this rank is the one to do so.
  std::optional<Error> watch(Duration time);
  /// Who came last to the set's collectives; null but on its root.
  const Stragglers* stragglers() const { return stragglers_ ? &*stragglers_ : nullptr; }
  bool has_pending_work() const;
  bool is_running() const { return batches_.is_running(); }
  /// True while something is under way that only polling moves.
  bool polls() const { return parts_.data_path->polls(); }
  MemoryUse withdraw() { return parts_.data_path->withdraw(); }
  bool leads_several() const { return leader_io_ && parts_.topology.nodes() > 1; }
  /// Handles what has come for a leader, and nothing else. Throws as make_progress(), that is
  /// EndedElsewhere where another node has ended.
  void hear(Duration time) {
    if (leader_io_) leader_io_->work(time);
  }
  /// Tells the other nodes why this one ends.
  void send_end(const Error& error) noexcept {
    if (leader_io_) leader_io_->send_end(error);
  }
  bool messages_left() { return leader_io_ && leader_io_->unfinished(); }
  /// The unit whose completion depends on local peers alone, 0 where there is none.
  std::uint64_t awaited() const { return parts_.data_path->awaited(); }
  std::optional<Duration> deadline() const {
    return leader_io_ ? leader_io_->deadline() : std::nullopt;
  }

 private:
  const Decision& decision_in(LogBatch& batch);
  void execute(const Decision& decision);
  LastArrival last_of_node(Id id) const;
  std::vector<LastArrival> last_arrivals(const Decision& decision) const;
  WaitReport report_on(const Operation& operation) const;
  std::optional<Waits::Stall> stall(Duration time) const;
  bool finish_completed();

  const SetParts parts_;
  const EngineParts& engine_;
  ProcessSets& sets_;
  const ProcessSet id_;
  const Tracer trace_;
  NodeControlBlock& control_block_;
  const MessageLimits log_limits_;  ///< of what the node's log says
  Waits waits_;
  std::optional<LeaderIo> leader_io_;     ///< of node leaders
  std::optional<Stragglers> stragglers_;  ///< the root's
  Operations operations_;
  Batches batches_;
  std::atomic<bool> all_departed_{false};
  Duration decided_at_{};  ///< the last decision that this rank has read
  // Members so that make_progress() uses their memory again.
  LogBatch log_batch_;
  Decision decision_;
  DecidedBatch decided_;
};

}  // namespace hora::internal
