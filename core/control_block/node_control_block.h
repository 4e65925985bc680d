/// The node's shared page: which rank is ready for which id, the log of decisions, and wake-ups.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/control_block/atomic.h"
#include "core/control_block/byte_ring.h"
#include "core/control_block/launch_ticket_lock.h"
#include "core/control_block/node_progress.h"
#include "core/control_block/rank_status.h"
#include "core/control_block/ready_words.h"
#include "core/control_block/sequence_ring.h"
#include "core/control_block/tensor_id.h"
#include "core/control_block/wakeup_flags.h"

namespace hora::internal {

struct ControlBlockShape {
  int local_size = 1;
  int id_capacity = 4096;
  bool single_node = true;
  std::size_t mailbox_bytes = std::size_t{256} << 10;  ///< of each rank
  std::size_t control_bytes = std::size_t{4} << 20;
  int ranks_per_ready_word = ReadyWords::kRanksPerWord;  ///< fewer in tests
};

/// The next batch of the log.
struct LogBatch {
  enum class Kind : std::uint32_t { run = 0, control = 1 };
  Kind kind = Kind::run;
  std::vector<Id> ids;             ///< of Kind::run, in order
  std::vector<std::byte> payload;  ///< of Kind::control
};

/// A view of shared memory that is all zero when the first rank begins to use it. Each process has
/// its own view; all state lies in the memory, except the positions named as this rank's.
///
/// Thread rules: arrive(), signal() and the queries: any thread of any rank. next_batch() and
/// set_done(): the thread that holds this rank's engine lock. push_*, pop_*, reset, retire: the
/// leader's, likewise.
class NodeControlBlock {
 public:
  static std::size_t bytes(const ControlBlockShape& shape);
  NodeControlBlock(std::byte* memory, const ControlBlockShape& shape, int local_rank);
  /// The control block of a process set, whose ranks are woken by the wakeup_flags of the world's
  /// control block (WakeupFlags::among).
  NodeControlBlock(std::byte* memory, const ControlBlockShape& shape, int local_rank,
                   WakeupFlags wakeup_flags);

  int local_rank() const { return local_rank_; }
  int local_size() const { return shape_.local_size; }
  int id_capacity() const { return shape_.id_capacity; }

  // Readiness of known ids.
  using Arrival = ReadyWords::Arrival;
  /// Marks this rank's tensor `id` ready at `where`. The last arriver of the node appends the id:
  /// to the log in a job of one node, else to the leader's arrivals. `stale`: the id was given up
  /// meanwhile. `time`: of the host's monotonic clock, for last_arrival(); zero: not to be counted.
  /// `resized`: for take_resized(), in a job of several nodes.
  Arrival arrive(Id id, Location where, std::chrono::nanoseconds time = {}, bool resized = false);
  /// The leader's, of an id that it has got by pop_arrival(): whether some rank was ready for it
  /// `resized`. It may be true of another one's, too.
  bool take_resized(Id id);
  /// Who was the last to become ready for an id. Valid while all ranks of the node are ready for it
  /// and none can be ready again: until this rank has completed its run.
  struct Last {
    int local_rank = -1;  ///< -1: no rank has given a time
    std::chrono::nanoseconds at{};
    std::chrono::nanoseconds late = std::chrono::nanoseconds::max();  ///< after the one before it
  };
  Last last_arrival(Id id) const;
  /// Those that are ready for `id`: ReadyWords::ranks.
  LocalRanks ready_ranks(Id id) const { return ready(id).ranks(); }
  /// Grows with each completed run; 0 before the first. For the choice of the least recently used
  /// id.
  std::uint64_t last_run(Id id) const;
  Location location(Id id, int local_rank) const;
  /// The leader wants to be woken at each arrival of this id.
  void watch(Id id, bool on);
  bool watched(Id id) const;
  /// This rank is no longer ready for `id`.
  void withdraw(Id id) { ready(id).withdraw(local_rank_); }
  /// No rank is.
  void reset(Id id) { ready(id).reset(); }
  /// Gives the id up: ReadyWords::retire.
  bool retire(Id id, bool only_idle) { return ready(id).retire(only_idle); }

  // Ranks that have joined: they are woken at each arrival, to become ready as well.
  void set_joined(bool on);
  bool any_joined() const { return joined_count_->load(kWakeOrder) != 0; }
  LocalRanks joined_ranks() const;

  // The log.
  bool log_has_pending_work() const;
  /// The next batch, the same on every rank of the node, or nothing.
  std::optional<LogBatch> next_batch();
  /// The same into `batch`, whose memory is used again. False: nothing.
  bool next_batch(LogBatch& batch);
  /// Leader of several nodes: appends one decided batch.
  void push_run(std::span<const Id> ids);
  /// Leader: appends a control payload. False: no room until slow readers have caught up.
  bool push_control(std::span<const std::byte> payload);

  // To the leader.
  bool push_mail(std::span<const std::byte> message) {
    return mailbox(local_rank_).try_push(message);
  }
  std::optional<std::vector<std::byte>> pop_mail(int local_rank) {
    return mailbox(local_rank).pop();
  }
  std::optional<Id> pop_arrival();
  bool leader_has_pending_work() const;

  // Progress of the data path: units finished since the start.
  void set_done(std::uint64_t units);
  /// Units that every rank of the node has finished.
  std::uint64_t done_by_all() const;
  /// Local ranks that have finished fewer units than this.
  std::vector<int> behind(std::uint64_t units) const;

  /// Steps of the data path that all ranks of the node start in one order.
  StartOrderMemory& start_order() const { return *start_order_; }
  /// Orders the collectives on the node's devices.
  LaunchTicketLockMemory& launch_ticket_lock() const { return *launch_ticket_lock_; }
  /// The rounds of exchanges.
  ExchangeRounds exchange_rounds() const {
    return ExchangeRounds(exchanges_, shape_.local_size, local_rank_);
  }

  /// How much of its units each rank has made readable.
  UnitProgress unit_progress() const { return UnitProgress(unit_progress_cells_, local_rank_); }

  /// Why the node's engines end; of the world's control block.
  FirstCause first_cause() const { return FirstCause(*first_cause_); }

  /// What a rank did last; of the world's control block.
  RankStatus& status(int local_rank) const { return statuses_[local_rank]; }
  /// Which rank logs a stall of this set.
  StallBoard& stall_board() const { return *stall_board_; }

  // Sleeping and waking.
  using Sleeper = WakeupFlags::Sleeper;
  const WakeupFlags& wakeup_flags() const { return wakeup_flags_; }
  /// Wakes local rank r if it sleeps.
  void signal(int local_rank) { wakeup_flags_.signal(local_rank); }
  void signal_others();
  /// From now on a peer that finishes unit `units` (0: none) wakes this rank if it sleeps.
  void await_done(std::uint64_t units);

 private:
  struct alignas(64) RankCell {
    Atomic<std::uint64_t> awaited;
    alignas(64) Atomic<std::uint64_t> done;
    alignas(64) Atomic<std::uint64_t> control_read;  ///< bytes of the control ring
    Atomic<std::uint64_t> controls_read;             ///< entries of Kind::control
    Atomic<std::uint32_t> joined;
  };
  struct alignas(64) IdCell {
    Atomic<std::uint64_t> ready;     ///< the first of ReadyWords
    Atomic<std::uint64_t> last_run;  ///< a number that grows with each run of any id
    Atomic<std::uint32_t> watched;
    Atomic<std::uint32_t> resized;  ///< set before `ready`
  };
  struct Layout;

  static Layout layout(const ControlBlockShape& shape);
  RankCell& rank(int r) const { return ranks_[r]; }
  IdCell& cell(Id id) const { return ids_[slot_of(id)]; }
  ReadyWords ready(Id id) const;
  Plain<Location>& place(Id id, int local_rank) const;
  Mailbox mailbox(int local_rank) const;
  std::uint64_t slowest(Atomic<std::uint64_t> RankCell::*position, std::memory_order order) const;
  std::uint64_t close_batch(std::uint64_t ticket, SequenceRingEntry& first);

  ControlBlockShape shape_;
  int local_rank_;
  int more_ready_words_;  ///< of an id
  RankCell* ranks_;
  IdCell* ids_;
  Atomic<std::uint64_t>* more_ready_;
  Plain<Location>* locations_;
  /// As the locations. Nothing depends on them: not of the types that the model checker explores.
  std::atomic<std::int64_t>* ready_times_;
  std::byte* mailboxes_;
  SequenceRing log_;
  SequenceRing arrivals_;
  ByteRing control_;
  StartOrderMemory* start_order_;
  LaunchTicketLockMemory* launch_ticket_lock_;
  Atomic<std::uint32_t>* joined_count_;
  WakeupFlags wakeup_flags_;
  ExchangeRoundsCell* exchanges_;          ///< by local rank
  UnitProgressCell* unit_progress_cells_;  ///< likewise
  FirstCauseMemory* first_cause_;
  RankStatus* statuses_;  ///< by local rank
  StallBoard* stall_board_;

  std::uint64_t log_position_ = 0;       ///< this rank's
  std::uint64_t arrival_position_ = 0;   ///< this rank's, as leader
  std::uint64_t control_written_ = 0;    ///< this rank's, as leader
  std::uint64_t controls_appended_ = 0;  ///< this rank's, as leader
};

}  // namespace hora::internal
