/// One process set's part of a rank's engine: its names, its negotiation and its data path.
#pragma once

#include <hora/context.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/engine/leader_io.h"
#include "core/engine/name_table.h"
#include "core/engine/parts.h"
#include "core/engine/submission.h"
#include "core/messages/message_limits.h"
#include "core/thread_safety.h"

namespace hora {

/// What the sets of one rank have in common.
struct EngineShared {
  const EngineParts& parts;
  std::atomic<bool> poisoned{false};  ///< peers may still touch memory: none is freed
  // Called with the progress lock held.
  /// A change of the process sets has been agreed on, and all ranks of this node have read it.
  std::function<void(std::shared_ptr<Submission>)> sets_change;
  /// The sets on which this rank waits for others under this name.
  std::function<std::vector<ProcessSet>(const std::string& name)> waits_on;
};

/// Thread rule, beside each part. The *table* lock guards names and submissions and is held
/// briefly; the *progress* lock is the Engine's.
class SetEngine {
 public:
  SetEngine(const SetParts& parts, EngineShared& shared, ProcessSet id = 0);
  SetEngine(const SetEngine&) = delete;
  SetEngine& operator=(const SetEngine&) = delete;

  ProcessSet id() const { return id_; }
  const Topology& topology() const { return parts_.topology; }
  NodeMemory& memory() const { return *parts_.memory; }
  NodeControlBlock& control_block() const { return control_block_; }
  bool single_node() const { return single_node_; }
  /// The set's collectives of this kind run on the device: see device_path.h.
  bool on_device(const Signature& signature) const { return set_memory_.on_device(signature); }
  const Tracer& trace() const { return trace_; }

  // Any thread.
  /// Copies data that peers cannot see to where they can, and announces it. `waits`: the caller
  /// keeps the data as it is until the end.
  std::shared_ptr<Submission> submit(Request request, Caller caller);
  /// Of a finished submission: copies results out, or throws its error. Frees the name.
  void collect(Submission& submission);
  /// Releases a submission whose handle an exception has dropped.
  void orphan(const std::shared_ptr<Submission>& submission);
  std::vector<std::shared_ptr<Submission>> unfinished() const;
  /// A name whose handle is open, if any.
  std::optional<std::string> open_name() const;
  Statistics statistics() const;
  /// No more can be submitted. The first cause stays.
  void close(const Error& error);
  void announce_departure();
  /// Every rank of the set has departed.
  bool all_departed() const { return all_departed_.load(); }
  /// Announces that this rank, which has nothing in flight, has no more data. The submission is
  /// finished when all ranks have joined; its number is the last one.
  std::shared_ptr<Submission> join();
  /// Waits for peers though nothing is submitted.
  void expect_peers() { undecided_.fetch_add(1); }
  bool waits_for_peers() const { return undecided_.load() > 0; }
  /// This rank's submission of this name waits for others.
  bool waits_for_peers(const std::string& name) const;
  void report_stalls();

  // Holding the progress lock.
  bool make_progress();
  bool has_pending_work() const;
  bool is_running() const { return !started_units_.empty(); }
  /// True while something is under way that only polling moves.
  bool polls() const;
  bool leads_several() const { return leader_io_ && !single_node_; }
  bool messages_left() { return leader_io_ && leader_io_->unfinished(); }
  std::uint64_t awaited() const { return parts_.data_path->awaited(); }
  std::optional<Duration> deadline() const {
    return leader_io_ ? leader_io_->deadline() : std::nullopt;
  }
  void finish(const std::shared_ptr<Submission>& submission, std::optional<Error> error);
  /// Fails what waits for other ranks, and what is submitted from now on.
  void fail_undecided(const Error& error);
  /// Fails everything.
  void fail_all(const Error& error);

 private:
  /// Decided submissions of this rank, and where each local rank keeps its part.
  struct Batch {
    std::vector<std::shared_ptr<Submission>> submissions;
    std::vector<std::vector<Location>> locations;
  };
  struct StartedUnit {
    std::uint64_t unit;
    std::vector<std::shared_ptr<Submission>> submissions;
  };

  // submitting
  void announce(const std::shared_ptr<Submission>& submission) HORA_REQUIRES(table_lock_);
  NodeControlBlock::Arrival arrive(Id id, Location where);
  void report(Submission& submission) HORA_REQUIRES(table_lock_);
  void send_mail(const Mail& mail) HORA_REQUIRES(table_lock_);
  void release(Submission& submission);

  // making progress
  bool flush_outbox();
  void execute(const LogBatch& batch);
  Decision decision_in(const LogBatch& batch) const;
  void execute_decision(const Decision& decision);
  void run(const Batch& batch);
  BoundUnit bind(Unit unit, const Batch& batch);
  void bind_exchange(BoundUnit& bound, const Submission& mine,
                     const std::vector<Location>& locations);
  bool complete_units();
  void answer(const std::string& asked);

  // having joined (set_engine_join.cpp)
  bool submit_joined_proxies();
  bool submit_joined_proxy(Id id, const std::string& name) HORA_REQUIRES(table_lock_);
  bool is_wanted(Id id) const HORA_REQUIRES(table_lock_);
  bool may_submit_joined_proxies() const;
  std::shared_ptr<Submission> joined_proxy(Id id, const Signature& signature);
  void drop_joined_proxy(Id id) HORA_REQUIRES(table_lock_);
  void end_join(int last_joined);

  SetParts parts_;
  EngineShared& shared_;
  const ProcessSet id_;
  const Tracer trace_;
  NodeControlBlock& control_block_;
  const SetMemory set_memory_;
  const bool single_node_;
  const MessageLimits log_limits_;     ///< of what the node's log says
  std::optional<LeaderIo> leader_io_;  ///< of node leaders; under the progress lock

  mutable Mutex table_lock_;
  NameTable table_ HORA_GUARDED_BY(table_lock_);
  std::optional<Error> closed_ HORA_GUARDED_BY(table_lock_);  ///< why nothing more can be submitted
  /// Of exchanges under way when all failed: peers may still write there, so it is not freed.
  std::vector<std::shared_ptr<ExchangeResult>> retained_on_failure_ HORA_GUARDED_BY(table_lock_);
  Statistics statistics_ HORA_GUARDED_BY(table_lock_);
  std::deque<std::vector<std::byte>> outbox_
      HORA_GUARDED_BY(table_lock_);  ///< mail that found the mailbox full

  std::deque<StartedUnit> started_units_;  ///< under the progress lock, as the next
  std::uint64_t units_started_ = 0;
  bool shares_device_;  ///< from the first other process set on, in the order of units

  std::atomic<int> undecided_{0};  ///< this rank's submissions that wait for others
  std::atomic<bool> all_departed_{false};
  std::atomic<bool> joined_{false};
  std::set<Id> refused_ HORA_GUARDED_BY(
      table_lock_);  ///< ids of operations that failed, or will, because this rank has joined
};

}  // namespace hora
