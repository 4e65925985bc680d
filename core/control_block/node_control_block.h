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
#include "core/control_block/launch_ticket_lock.h"
#include "core/control_block/node_progress.h"
#include "core/control_block/rank_status.h"
#include "core/control_block/rings.h"
#include "core/control_block/tensor_id.h"
#include "core/control_block/wakeup_flags.h"

namespace hora::internal {

/// A view of one id's words, all zero at first: a bit for each rank, and the id's generation, so
/// that a late arrival for an id that was given up changes nothing. Of several words whoever finds
/// all full claims the completion in the first, which also counts the rounds: no claim can be of an
/// earlier one.
///  first word: generation 16 | round 15 | claimed 1 | ranks 32
///  others:     generation 16 | 0                 16 | ranks 32
/// Thread rules: arrive(), withdraw() and the queries: any thread of any rank. end_round(): the
/// thread whose arrival was the last. reset() and retire(): the leader's.
class ReadyWords {
 public:
  static constexpr int kRanksPerWord = 32;

  /// Where the words lie: that of the first ranks, and those of the others, of which there are
  /// words(..) - 1.
  struct Memory {
    Atomic<std::uint64_t>& first;
    Atomic<std::uint64_t>* others;
  };
  static constexpr int words(int local_size, int ranks_per_word) {
    return (local_size + ranks_per_word - 1) / ranks_per_word;
  }

  ReadyWords(Memory memory, std::uint32_t generation, int local_size, int ranks_per_word)
      : memory_(memory),
        generation_(generation),
        local_size_(local_size),
        ranks_per_word_(ranks_per_word) {}

  /// The id is not given up.
  bool is_current() const;
  enum class Arrival { waiting, complete, stale };
  /// Marks this rank ready. `complete`: all are, and only the caller is told so; nobody is ready
  /// any more, and the id may be given up again, after its end_round().
  Arrival arrive(int local_rank);
  void end_round();

  /// Those that are ready: all from the last arrival to end_round(); none where the id is stale.
  LocalRanks ranks() const;
  /// This rank is no longer ready.
  void withdraw(int local_rank);
  /// Nobody is ready any more.
  void reset();
  /// Gives the id up. False, and nothing is done, while its last arriver is at work; with
  /// `only_idle` also where a rank is seen to be ready for it.
  bool retire(bool only_idle);

 private:
  Atomic<std::uint64_t>& word(int index) const {
    return index == 0 ? memory_.first : memory_.others[index - 1];
  }
  int words() const { return words(local_size_, ranks_per_word_); }
  std::uint64_t full_mask(int index) const;
  bool others_are_full() const;
  bool claim();
  void clear(int index, std::uint64_t ranks);

  Memory memory_;
  std::uint32_t generation_;
  int local_size_;
  int ranks_per_word_;
};

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
  static std::size_t bytes(const ControlBlockShape& shape) {
    return sections(nullptr, shape).bytes;
  }
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
  std::uint64_t last_run(Id id) const { return cell(id).last_run.load(std::memory_order_relaxed); }
  Location location(Id id, int local_rank) const { return place(id, local_rank); }
  /// The leader wants to be woken at each arrival of this id.
  void watch(Id id, bool on) { cell(id).watched.store(on ? 1 : 0, kWakeOrder); }
  bool watched(Id id) const { return cell(id).watched.load(kWakeOrder) != 0; }
  /// This rank is no longer ready for `id`.
  void withdraw(Id id) { ready(id).withdraw(local_rank_); }
  /// No rank is.
  void reset(Id id) { ready(id).reset(); }
  /// Gives the id up: ReadyWords::retire.
  bool retire(Id id, bool only_idle) { return ready(id).retire(only_idle); }

  // Ranks that have joined: they are woken at each arrival, to become ready as well.
  void set_joined(bool on);
  bool any_joined() const { return sections_.joined_count->load(kWakeOrder) != 0; }
  LocalRanks joined_ranks() const;

  // The log.
  bool log_has_pending_work() const { return log_.find(log_position_) != nullptr; }
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
  std::uint64_t done_by_all() const { return slowest(&RankCell::done, kWakeOrder); }
  /// Local ranks that have finished fewer units than this.
  std::vector<int> behind(std::uint64_t units) const;

  /// Steps of the data path that all ranks of the node start in one order.
  StartOrderMemory& start_order() const { return *sections_.start_order; }
  /// Orders the collectives on the node's devices.
  LaunchTicketLockMemory& launch_ticket_lock() const { return *sections_.launch_ticket_lock; }
  /// The rounds of exchanges.
  ExchangeRounds exchange_rounds() const {
    return ExchangeRounds(sections_.exchanges, shape_.local_size, local_rank_);
  }

  /// How much of its units each rank has made readable.
  UnitProgress unit_progress() const { return UnitProgress(sections_.unit_progress, local_rank_); }

  /// Why the node's engines end; of the world's control block.
  FirstCause first_cause() const { return FirstCause(*sections_.first_cause); }

  /// The last actions of a rank, on the world's control block.
  RankStatus& status(int local_rank) const { return sections_.statuses[local_rank]; }
  /// Which rank logs a stall of this set.
  StallBoard& stall_board() const { return *sections_.stall_board; }

  // Sleeping and waking.
  using Sleeper = WakeupFlags::Sleeper;
  const WakeupFlags& wakeup_flags() const { return wakeup_flags_; }
  /// Wakes local rank r if it sleeps.
  void signal(int local_rank) { wakeup_flags_.signal(local_rank); }
  void signal_others();
  /// From now on a peer that finishes unit `units` (0: none) wakes this rank if it sleeps.
  void await_done(std::uint64_t units) { rank(local_rank_).awaited.store(units, kWakeOrder); }

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
  /// The sections of the memory, each 64-byte aligned.
  struct Sections {
    RankCell* ranks;
    IdCell* ids;
    Plain<Location>* locations;
    SequenceRingHead* log_head;
    SequenceRingEntry* log;
    SequenceRingHead* arrivals_head;
    SequenceRingEntry* arrivals;
    std::byte* mailboxes;
    std::byte* control;
    StartOrderMemory* start_order;
    LaunchTicketLockMemory* launch_ticket_lock;
    WakeupFlags::Cell* wakeup_flags;
    ExchangeRoundsCell* exchanges;    ///< by local rank
    UnitProgressCell* unit_progress;  ///< likewise
    FirstCauseMemory* first_cause;
    RankStatus* statuses;  ///< by local rank
    StallBoard* stall_board;
    /// As the locations. Nothing depends on them: not of the types that the model checker explores.
    std::atomic<std::int64_t>* ready_times;
    Atomic<std::uint64_t>* more_ready;
    Atomic<std::uint32_t>* joined_count;
    std::size_t bytes;
  };

  static Sections sections(std::byte* memory, const ControlBlockShape& shape);
  RankCell& rank(int r) const { return sections_.ranks[r]; }
  IdCell& cell(Id id) const { return sections_.ids[slot_of(id)]; }
  ReadyWords ready(Id id) const;
  Plain<Location>& place(Id id, int local_rank) const;
  Mailbox mailbox(int local_rank) const;
  std::uint64_t slowest(Atomic<std::uint64_t> RankCell::*position, std::memory_order order) const;
  std::uint64_t close_batch(std::uint64_t ticket, SequenceRingEntry& first);

  ControlBlockShape shape_;
  int local_rank_;
  int more_ready_words_;  ///< of an id
  Sections sections_;
  SequenceRing log_;
  SequenceRing arrivals_;
  ByteRing control_;
  WakeupFlags wakeup_flags_;

  std::uint64_t log_position_ = 0;       ///< this rank's
  std::uint64_t arrival_position_ = 0;   ///< this rank's, as leader
  std::uint64_t control_written_ = 0;    ///< this rank's, as leader
  std::uint64_t controls_appended_ = 0;  ///< this rank's, as leader
};

}  // namespace hora::internal
