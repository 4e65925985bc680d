/// One process set's part of a rank's engine: its negotiation and its data path, what waits too
/// long in it and which rank says so, and who comes last.
#pragma once

#include "core/engine/operations.h"
#include "core/negotiation/leader.h"

namespace hora::internal {

/// "rank 3 (host b, pid 4711) is stopped (SIGSTOP), and has last submitted tensor "f", 12.0 s ago".
/// Tells apart a rank that is stopped, gone, in its own code, and in hora. Pure.
std::string rank_state_text(const ProcessIdentity& process, ProcessState state,
                            const std::optional<SharedNote::Note>& submitted,
                            const std::optional<SharedNote::Note>& waits_for, Duration now);

/// A collective that waits for ranks or has run out of time. Ranks are the world's, ascending.
struct WaitReport {
  std::string name;
  ProcessSet set;
  TimeLimit limit;
  int rank = 0;      ///< that has submitted it
  int root = 0;      ///< the rank that decides, and warns of HORA_STALL_WARNING
  int reporter = 0;  ///< the rank that knows this: the root, or `rank`
  bool decided = false;
  // Where it is not decided:
  std::vector<int> missing = {};  ///< have not submitted it
  std::vector<int> unknown = {};  ///< may have
  // Where it is under way:
  std::vector<int> unfinished = {};  ///< of this rank's node: have not finished it
  bool has_other_nodes = false;
  // In either case:
  std::vector<std::string> remarks = {};  ///< on ranks that it waits for (rank_state_text)
  bool root_is_silent = false;            ///< it has not answered a report
};

/// A warning of a collective that is not complete after `waited`, and may be some time. Begins with
/// the ranks that lack it. Pure.
std::string stall_text(const WaitReport& report, const std::string& waited);

/// Two or three sentences: the tensor, the time, whom it waits for, and what to do. Pure.
std::string timeout_text(const WaitReport& report);

/// Watches the waits of one set on this rank. While the root answers it logs for all ranks what
/// they have not all submitted (OverdueNames); what does not end, join(), shutdown(), and a silent
/// root, the lowest local rank that waits logs for its node. Thread rule: the holder of the
/// progress lock, but for state_of(): any thread.
class Waits {
 public:
  explicit Waits(const SetMember& set)
      : set_(set), processes_(set.engine.processes), warning_(set.engine.settings.stall_warning) {}

  /// This rank's knowledge of an operation. `known`: a leader's.
  WaitReport report_on(const Operation& operation, const std::optional<Presence>& known) const;
  /// The root's report on one that has run out of time on some rank.
  WaitReport report_on(const Expired& expired) const;

  /// An operation that does not go on, or a call for which the ranks in `missing` are lacking.
  struct Stall {
    Duration age;
    std::shared_ptr<Operation> operation = nullptr;
    std::string_view call = {};
    std::vector<int> missing = {};
  };
  /// The time to look again has come.
  bool is_due(Duration time) const { return warning_.count() > 0 && time >= next_look_; }
  /// Whether this rank of its node is to log the stall now, if there is one.
  bool look(Duration time, const std::optional<Stall>& stall);
  /// The warning of a call.
  std::string text_of_call(const Stall& stall) const;
  /// The ranks of this node that lack a join in which nothing has happened for `age`, if any.
  std::optional<Stall> join_stall(Duration age) const;

  /// A decision says that these world ranks have called shutdown().
  void note_departed(const std::vector<int>& ranks) {
    departed_.insert(ranks.begin(), ranks.end());
  }
  /// The stall in shutdown() beyond HORA_STALL_WARNING where this rank is to log it: a rank that
  /// has not called it is of its node, or its node has the lowest rank that has.
  std::optional<Stall> departure_stall(Duration time) const;
  /// A process of this host that has been stopped for HORA_TIMEOUT while this rank waits in
  /// shutdown(). A little later than that: horarun, which sees all hosts, ends the job first.
  std::optional<Error> stopped_rank(Duration time);

  bool is_due_for_processes(Duration time) const {
    return !processes_.empty() && time >= next_check_;
  }
  /// Where something waits (`any_waits`): a rank of this node whose process has ended.
  std::optional<Error> gone_rank(Duration time, bool any_waits);

  /// Describes a rank of this node.
  std::string state_of(int rank) const;

 private:
  ProcessIdentity identity(int rank) const { return identity_of(rank, processes_); }
  bool is_of_node(int rank) const { return std::ranges::binary_search(set_.ranks_of_node(), rank); }
  bool is_of_host(int rank) const { return identity(rank).host == identity(set_.rank()).host; }
  Presence presence_of(const Operation& operation) const;
  void note_absent(WaitReport& report, const Presence& presence) const;
  WaitReport known_of(const std::string& name, const TimeLimit& limit, int rank) const;
  void add_remarks(WaitReport& report, const std::vector<int>& ranks) const;
  Duration departed_at() const;
  std::vector<int> not_departed() const;

  const SetMember& set_;
  const std::vector<ProcessIdentity>& processes_;
  const Duration warning_;
  Duration next_look_{};
  Duration waits_since_{};  ///< the first look that found something; zero: none has
  Duration next_check_{};   ///< of processes
  std::set<int> departed_;
  Duration last_stop_look_{};
  std::map<int, Duration> stopped_for_;  ///< as seen in looks, by rank
};

/// Counts, on the root of a set, the ranks that come last, warns of a slow one, and leaves that
/// where `horarun --watch` finds it. Thread rule: the thread that holds the engine's progress lock.
class Stragglers {
 public:
  explicit Stragglers(const SetMember& set);

  /// A decision that is about to be carried out: its names have ids from here on.
  void note_names(const Decision& decision) {
    for (const Assigned& assigned : decision.assigned) {
      ledger_.assign(static_cast<std::size_t>(slot_of(assigned.id)), assigned.name);
    }
  }
  /// An id is decided.
  void count(Id id, const LastArrival& last);
  /// Who came last when this id was decided last; of several nodes, where no other rank knows it.
  LastArrival last_of(Id id) const { return last_of_[static_cast<std::size_t>(slot_of(id))]; }

  /// The final report's table.
  std::string text() const { return arrivals_text(ledger_, set_.engine.processes); }

 private:
  const SetMember& set_;
  ArrivalLedger ledger_;
  std::vector<LastArrival> last_of_;  ///< by slot
  LastArrival::Time recorded_at_{};
  std::vector<RankArrivals> rows_;  ///< used again: count() does not allocate
};

/// A neighbour in the tree of leaders has sent why its node has ended.
class EndedElsewhere final : public Error {
 public:
  using Error::Error;
  explicit EndedElsewhere(const Error& error) : Error(detached(error)) {}
};

/// A leader's connections: mail and arrivals of its node in, messages of other nodes in and out,
/// decisions into the node's log. Thread rule: the thread that holds the engine's progress lock.
class LeaderIo {
 public:
  /// `tree` is null in jobs of one node; `remark`, `eager`: see IdUse.
  LeaderIo(const Topology& topology, int node, int id_capacity, NodeControlBlock& control_block,
           TreeLink* tree, ProcessSet set = kWorld, Duration warning_interval = {},
           std::function<std::string(int)> remark = {}, const EagerUse& eager = {});

  /// True if anything had come in. Throws EndedElsewhere; Error(transport) for invalid messages.
  bool work(Duration now);
  /// Tells the neighbours in the tree why this node ends, within some milliseconds.
  void send_end(const Error& error) noexcept;
  /// True while messages to other nodes are on their way, or decisions wait for room in the log.
  bool unfinished() { return !for_log_.empty() || (tree_ && !tree_->flushed()); }
  /// work() would find what a rank of this node has announced.
  bool has_pending_work() const {
    return control_block_.leader_has_pending_work() || leader_.has_joined_arrivals();
  }
  /// The root's, since the last call: ids that run, and who came last to them.
  std::vector<std::pair<Id, LastArrival>> take_arrivals() { return std::exchange(arrivals_, {}); }
  /// The root's, likewise: what has run out of time on some rank.
  std::vector<Expired> take_expired() { return std::exchange(expired_, {}); }
  std::optional<Duration> deadline() const { return leader_.deadline(); }
  Presence presence_of(const std::string& name) const { return leader_.presence_of(name); }

 private:
  bool hand_out(Duration now);
  void read(const TreeLink::Received& received, Duration now);
  void obey(int sender, const Message& message, Duration now);
  void obey_held(Duration now);
  bool flush_log();

  int parent_;
  std::vector<int> children_;
  MessageLimits limits_;
  NodeControlBlock& control_block_;
  TreeLink* tree_;
  Leader leader_;
  const std::function<void(std::span<const NodeSum>)> spread_;  ///< EagerUse's
  const int node_;
  const int nodes_;
  bool has_more_ = true;                      ///< the leader may have more to hand out than it has
  std::deque<std::pair<int, Message>> held_;  ///< with their senders: until reached()
  std::deque<Decision> for_log_;
  const std::vector<int> local_ranks_;  ///< world ranks
  std::vector<std::pair<Id, LastArrival>> arrivals_;
  std::vector<Expired> expired_;
};

/// The units of one set that are under way on this rank, in the order in which every rank starts
/// them. Thread rule: the thread that holds the engine's progress lock.
class Batches {
 public:
  explicit Batches(const SetMember& set) : set_(set), shares_device_(set.id != kWorld) {}
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  /// Fuses tensors that travel together for the data path. Takes the operations.
  void start(std::vector<std::shared_ptr<Operation>>& decided);
  bool is_running() const { return !started_.empty(); }
  struct Started {
    std::uint64_t number = 0;
    std::vector<std::shared_ptr<Operation>> operations;
  };
  /// The oldest unit, where every rank of the node has completed it, until pop_completed(); or
  /// null.
  const Started* completed() const {
    if (started_.empty()) return nullptr;
    const Started& oldest = started_.front();
    return oldest.number <= set_.parts.control_block->done_by_all() ? &oldest : nullptr;
  }
  void pop_completed() {
    started_.front().operations.clear();
    started_.pop();
  }

 private:
  std::size_t longest_chunk(OperationKind kind, bool on_device) const;
  void note_started(BoundUnit& unit);
  void bind(std::span<const std::shared_ptr<Operation>> operations);
  void bind_tensor(BoundUnit& bound, const Operation& operation, bool on_host) const;
  void bind_exchange(BoundUnit& bound, const Operation& operation) const;

  const SetMember& set_;
  RingQueue<Started> started_;
  // Members so that start() uses their memory again.
  std::vector<const Signature*> signatures_;
  BoundUnit bound_;
  std::uint64_t number_ = 0;  ///< of the last one that was started
  bool shares_device_;        ///< from the first other process set on, in the order of units
};

/// Carries out what the set's log says: decisions become units, and units that are complete become
/// finished operations. Thread rule: the thread that holds the engine's progress lock, but for
/// operations(), all_departed() and what never changes: any thread.
class SetEngine {
 public:
  /// `engine` and `aborted` (see Operations) outlive it.
  SetEngine(const SetParts& parts, const EngineParts& engine, const std::atomic<bool>& aborted,
            ProcessSet id);

  NodeControlBlock& control_block() const { return *set_.parts.control_block; }
  /// The submitting side.
  Operations& operations() { return operations_; }
  const Operations& operations() const { return operations_; }
  /// Every rank of the set has departed.
  bool all_departed() const { return all_departed_.load(); }

  /// `time`: the present.
  bool make_progress(Duration time);
  /// Changes of the process sets that all ranks of this node have read since the last call.
  std::vector<std::shared_ptr<Operation>> take_changes() { return std::exchange(changes_, {}); }
  /// The error of a collective that has run out of time by now, or of a rank that it waits for and
  /// that has ended or is stopped for too long, if any; reports what waits too long, and logs it
  /// where this rank is the one to do so.
  std::optional<Error> watch(Duration time);
  /// A table of who came last to the set's collectives; empty but on its root.
  std::string arrivals_text() const { return stragglers_ ? stragglers_->text() : std::string(); }
  bool has_pending_work() const {
    return control_block().log_has_pending_work() ||
           (leader_io_ && leader_io_->has_pending_work()) || batches_.completed();
  }
  bool is_running() const { return batches_.is_running(); }
  DataPath& data_path() const { return *set_.parts.data_path; }
  bool leads_several() const { return leader_io_ && !set_.single_node(); }
  /// Null but on node leaders.
  LeaderIo* leader() { return leader_io_ ? &*leader_io_ : nullptr; }
  bool messages_left() { return leader_io_ && leader_io_->unfinished(); }
  std::optional<Duration> deadline() const {
    return leader_io_ ? leader_io_->deadline() : std::nullopt;
  }

 private:
  const Decision& decision_in(LogBatch& batch);
  void execute(const Decision& decision);
  void finish_eager(const Decision& complete);
  std::vector<std::byte*> tensors_of_node(const Operation& own, Id id) const;
  EagerUse eager_use();
  LastArrival last_of_node(Id id) const;
  std::vector<LastArrival> last_arrivals(const Decision& decision) const;
  WaitReport report_on(const Operation& operation) const;
  std::optional<Waits::Stall> stall(Duration time) const;
  bool finish_completed();

  const SetMember set_;
  const MessageLimits log_limits_;  ///< of what the node's log says
  Waits waits_;
  std::optional<LeaderIo> leader_io_;     ///< of node leaders
  std::optional<Stragglers> stragglers_;  ///< the root's
  Operations operations_;
  Batches batches_;
  std::atomic<bool> all_departed_{false};
  Duration decided_at_{};  ///< the last decision that this rank has read
  std::vector<std::shared_ptr<Operation>> changes_;
  // Members so that make_progress() uses their memory again.
  LogBatch log_batch_;
  Decision decision_;
  std::vector<std::shared_ptr<Operation>> decided_;
};

}  // namespace hora::internal
