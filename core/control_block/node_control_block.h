/// The node's shared page: who is ready for which id, the log of decisions, wake-ups, and notes.
#pragma once

#include <fmt/format.h>
#include <hora/error.h>
#include <hora/types.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/control_block/atomic.h"
#include "core/control_block/node_progress.h"

namespace hora::internal {

/// Sleeps until woken, until `timeout` has passed, or not at all when `word` no longer holds
/// `expected`. May wake without cause. Works across processes (std::atomic::wait does not).
void futex_wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds> timeout);

/// Wakes every sleeper on `word`.
void futex_wake(const Atomic<std::uint32_t>& word) noexcept;

/// A view of wake-up words in shared memory, all zero at first: one cell a rank, which each process
/// set numbers its own way. A rank has two sleepers: its engine thread, and a thread that makes
/// progress in its place. Each announces itself before it decides how long to sleep (atomic.h).
/// Thread rule: signal and sleeps: any thread of any rank; the others: this rank's.
class WakeupFlags {
 public:
  struct alignas(64) Cell {
    Atomic<std::uint32_t> engine_wake;  ///< futex word
    Atomic<std::uint32_t> engine_asleep;
    Atomic<std::uint32_t> caller_wake;  ///< futex word
    Atomic<std::uint32_t> caller;       ///< kNoCaller, ...
  };
  enum class Sleeper { engine, caller };
  /// Zero: not at all; nothing: until signalled.
  using SleepLength = std::optional<std::chrono::nanoseconds>;
  static constexpr SleepLength kNoSleep = std::chrono::nanoseconds(0);

  /// Rank r's cell is cells[r].
  WakeupFlags(Cell* cells, int ranks, int own_rank);
  /// The same wakeup_flags as a process set numbers them: its rank i is `members[i]` here.
  WakeupFlags among(const std::vector<int>& members) const;

  /// Wakes that rank's caller if it sleeps; its engine if it sleeps and there is no caller.
  void signal(int rank) const;
  bool sleeps(int rank) const;
  /// Wakes this rank's engine thread, even while another thread makes progress.
  void wake_engine() const;
  /// A caller of this rank begins or ends.
  void set_caller(bool on) const {
    own_cell_->caller.store(on ? kCallerAwake : kNoCaller, kWakeOrder);
  }
  /// Sleeps until signalled, at most `decide()` long, which is called after the announcement.
  template <class Decide>
  void sleep(Sleeper who, Decide&& decide) const {
    const bool is_caller = who == Sleeper::caller;
    auto& word = is_caller ? own_cell_->caller_wake : own_cell_->engine_wake;
    auto& state = is_caller ? own_cell_->caller : own_cell_->engine_asleep;
    const std::uint32_t before = word.load(kWakeOrder);
    state.store(is_caller ? kCallerAsleep : 1, kWakeOrder);
    const SleepLength length = decide();
    if (length != kNoSleep) futex_wait(word, before, length);
    state.store(is_caller ? kCallerAwake : 0, kWakeOrder);
  }

 private:
  // Values of Cell::caller.
  static constexpr std::uint32_t kNoCaller = 0, kCallerAwake = 1, kCallerAsleep = 2;

  WakeupFlags(std::vector<Cell*> cells, Cell* own_cell)
      : cells_(std::move(cells)), own_cell_(own_cell) {}

  std::vector<Cell*> cells_;  ///< by rank
  Cell* own_cell_;
};

/// One SequenceRingHead, then `capacity` SequenceRingEntry. A ticket (0, 1, 2, ...) is an entry's
/// place in the order; entry t lives in cell t % capacity and is visible once `sequence == t + 1`.
/// Lock-free for writers; a reader never waits for one: an unpublished entry ends its view. The
/// caller ensures that no ticket is taken more than `capacity` ahead of the slowest reader (the
/// control block does: an id is appended again only after every reader has passed its last entry).
struct SequenceRingEntry {
  Atomic<std::uint64_t> sequence;
  /// First ticket after the batch that begins here; 0: not closed yet (close_batch()).
  Atomic<std::uint64_t> batch_end;
  Plain<std::uint64_t> value;  ///< an id, or what `kind` says
  Plain<std::uint32_t> kind;
  Plain<std::uint32_t> length;
};
static_assert(sizeof(SequenceRingEntry) == 32);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct alignas(64) SequenceRingHead {
  Atomic<std::uint64_t> next_ticket;
};

class SequenceRing {
 public:
  SequenceRing(SequenceRingHead* head, SequenceRingEntry* entries, std::uint64_t capacity)
      : head_(head), entries_(entries), capacity_(capacity) {}

  std::uint64_t take_ticket() { return head_->next_ticket.fetch_add(1, kWakeOrder); }

  /// Makes ticket's entry visible. `batch_end`: 0, or the batch's end where the writer knows it.
  void publish(std::uint64_t ticket, std::uint32_t kind, std::uint64_t value, std::uint32_t length,
               std::uint64_t batch_end) {
    SequenceRingEntry& entry = cell(ticket);
    entry.kind = kind;
    entry.value = value;
    entry.length = length;
    entry.batch_end.store(batch_end, std::memory_order_relaxed);
    entry.sequence.store(ticket + 1, kWakeOrder);
  }

  /// The entry, or nullptr while it is not visible.
  SequenceRingEntry* find(std::uint64_t ticket) const {
    SequenceRingEntry& entry = cell(ticket);
    return entry.sequence.load(kWakeOrder) == ticket + 1 ? &entry : nullptr;
  }

 private:
  SequenceRingEntry& cell(std::uint64_t ticket) const { return entries_[ticket % capacity_]; }

  SequenceRingHead* head_;
  SequenceRingEntry* entries_;
  std::uint64_t capacity_;
};

inline Error damaged_page(const std::string& how) {
  return {ErrorCode::transport, "the node's shared page is damaged: " + how};
}

/// Positions count bytes since the ring was made and never wrap; a message lies in one piece unless
/// it crosses the end of the ring. One writer; one or more readers that each remember their
/// position. The writer is given the slowest reader's position.
class ByteRing {
 public:
  ByteRing(std::byte* memory, std::size_t capacity) : memory_(memory), capacity_(capacity) {}

  std::size_t capacity() const { return capacity_; }

  bool fits(std::uint64_t write_position, std::uint64_t slowest_read, std::size_t bytes) const {
    return bytes <= capacity_ && write_position + bytes - slowest_read <= capacity_;
  }
  void write(std::uint64_t position, std::span<const std::byte> bytes) {
    each_piece(position, bytes.size(), [&](std::size_t at, std::size_t from, std::size_t length) {
      std::memcpy(memory_ + at, bytes.data() + from, length);
    });
  }
  /// Throws Error(transport) for more than the ring can hold.
  std::vector<std::byte> read(std::uint64_t position, std::size_t length) const {
    if (length > capacity_) {
      throw damaged_page(fmt::format("a message of {} bytes in a ring of {}", length, capacity_));
    }
    std::vector<std::byte> bytes(length);
    each_piece(position, length, [&](std::size_t at, std::size_t from, std::size_t part) {
      std::memcpy(bytes.data() + from, memory_ + at, part);
    });
    return bytes;
  }

 private:
  template <class F>
  void each_piece(std::uint64_t position, std::size_t length, F&& f) const {
    const std::size_t at = static_cast<std::size_t>(position % capacity_);
    const std::size_t first = length < capacity_ - at ? length : capacity_ - at;
    if (first > 0) f(at, std::size_t{0}, first);
    if (length > first) f(std::size_t{0}, first, length - first);
  }

  std::byte* memory_;
  std::size_t capacity_;
};

/// The positions of a mailbox's writer and of its only reader.
struct alignas(64) MailboxHead {
  Atomic<std::uint64_t> written;
  alignas(64) Atomic<std::uint64_t> read;
};

/// Messages from one rank to its node's leader, each preceded by its length.
class Mailbox {
 public:
  Mailbox(MailboxHead* head, std::byte* memory, std::size_t capacity)
      : head_(head), ring_(memory, capacity) {}

  /// Writer's side, one thread at a time. False: no room now.
  bool try_push(std::span<const std::byte> message) {
    const std::uint64_t written = head_->written.load(std::memory_order_relaxed);
    const std::uint32_t length = static_cast<std::uint32_t>(message.size());
    if (!ring_.fits(written, head_->read.load(std::memory_order_acquire),
                    sizeof length + message.size())) {
      return false;
    }
    ring_.write(written, std::as_bytes(std::span(&length, 1)));
    ring_.write(written + sizeof length, message);
    head_->written.store(written + sizeof length + message.size(), kWakeOrder);
    return true;
  }

  /// Reader's side, one thread at a time. Throws Error(transport) for an invalid length.
  std::optional<std::vector<std::byte>> pop() {
    const std::uint64_t read = head_->read.load(std::memory_order_relaxed);
    const std::uint64_t written = head_->written.load(std::memory_order_acquire);
    if (written == read) return std::nullopt;
    std::uint32_t length = 0;
    const auto prefix = ring_.read(read, sizeof length);
    std::memcpy(&length, prefix.data(), sizeof length);
    const std::uint64_t there = written - read;
    if (there > ring_.capacity() || there < sizeof length || length > there - sizeof length) {
      throw damaged_page(
          fmt::format("a message of {} bytes where {} are said to be in a ring of {}", length,
                      there, ring_.capacity()));
    }
    auto message = ring_.read(read + sizeof length, length);
    head_->read.store(read + sizeof length + length, std::memory_order_release);
    return message;
  }

  bool empty() const {
    return head_->written.load(kWakeOrder) == head_->read.load(std::memory_order_relaxed);
  }

 private:
  MailboxHead* head_;
  ByteRing ring_;
};

/// A tensor's name with a set and a time, all zero at first: a sequence lock (H.-J. Boehm, 2012),
/// `version` odd while it is written. No rank depends on it.
class SharedNote {
 public:
  static constexpr std::size_t kMostBytes = 96;
  struct Note {
    std::string text;  ///< cut to kMostBytes
    std::chrono::nanoseconds time{};
    ProcessSet set = kWorld;
  };

  /// Left out where another thread writes just now.
  void write(std::string_view text, std::chrono::nanoseconds time, ProcessSet set = kWorld) {
    std::uint32_t version = version_.load(std::memory_order_relaxed);
    if (version % 2 != 0 || !version_.compare_exchange_strong(version, version + 1)) return;
    const std::size_t bytes = std::min(text.size(), kMostBytes);
    for (std::size_t at = 0; at < bytes; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, bytes - at));
      words_[at / 8].store(word, std::memory_order_release);
    }
    time_.store(time.count(), std::memory_order_release);
    set_.store(set.number(), std::memory_order_release);
    bytes_.store(static_cast<std::uint32_t>(bytes), std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  /// Nothing from now on.
  void clear() { write({}, {}); }
  /// Nothing where there is none, or where its writer has stopped within it.
  std::optional<Note> read() const {
    constexpr int kTries = 100;
    for (int i = 0; i < kTries; ++i) {
      const std::uint32_t version = version_.load(std::memory_order_acquire);
      if (version % 2 != 0) continue;
      const std::size_t bytes =
          std::min<std::size_t>(bytes_.load(std::memory_order_acquire), kMostBytes);
      const std::chrono::nanoseconds time(time_.load(std::memory_order_acquire));
      const ProcessSet set(set_.load(std::memory_order_acquire));
      std::array<std::uint64_t, kMostBytes / 8> words;
      for (std::size_t w = 0; w < words.size(); ++w) {
        words[w] = words_[w].load(std::memory_order_acquire);
      }
      if (version_.load(std::memory_order_relaxed) != version) continue;
      if (time.count() == 0) return std::nullopt;
      std::string text(bytes, '\0');
      std::memcpy(text.data(), words.data(), bytes);
      return Note{std::move(text), time, set};
    }
    return std::nullopt;
  }

 private:
  std::atomic<std::uint32_t> version_;
  std::atomic<std::uint32_t> bytes_;
  std::atomic<std::uint32_t> set_;
  std::atomic<std::int64_t> time_;
  std::array<std::atomic<std::uint64_t>, kMostBytes / 8> words_;
};

/// The last actions of a rank, whatever process sets it is in. Times are of the host's monotonic
/// clock. Thread rule: any thread of that rank writes, any of the node reads.
struct alignas(64) RankStatus {
  SharedNote submitted;                ///< the last name that it has submitted
  SharedNote waits_for;                ///< where a thread of it sleeps until this is complete
  std::atomic<std::int64_t> departed;  ///< when it has announced its shutdown(), in ns; 0: has not
};

/// Which ranks of a node wait for a stalled collective of one process set, and when one of them has
/// last logged it; on the set's control block, all zero at first. Times are those of the host's
/// monotonic clock. Thread rule: any thread of any rank.
class StallBoard {
 public:
  /// This local rank has a stall to log, or has none.
  void set_waiting(int local_rank, bool on) {
    waiting_[static_cast<std::size_t>(local_rank)].store(on);
  }
  /// No local rank below this one has.
  bool is_lowest(int local_rank) const {
    return std::none_of(waiting_.begin(), waiting_.begin() + local_rank,
                        [](const std::atomic<bool>& waits) { return waits.load(); });
  }
  /// True for one rank: no other logs for `interval`. Another rank has `head_start` to do so first.
  bool claim(std::chrono::nanoseconds time, std::chrono::nanoseconds interval,
             std::chrono::nanoseconds head_start = {}) {
    std::int64_t next = next_report_.load();
    return (time - head_start).count() >= next &&
           next_report_.compare_exchange_strong(next, (time + interval).count());
  }

 private:
  std::array<std::atomic<bool>, kMaxLocalSize> waiting_;
  std::atomic<std::int64_t> next_report_;
};

/// Why the job ends: the first rank to learn it publishes it here and wakes its node, whose ranks
/// all end with it. One that dies meanwhile leaves nothing. All zero at first. Thread rule: any
/// thread of any rank.
struct alignas(64) FirstCause {
  enum State : std::uint32_t { kNone = 0, kPublishing = 1, kPublished = 2 };

  /// False where another cause has been, or is being published. Long texts are cut.
  bool publish(const Error& error);
  /// There is one. A load of a line that is written once.
  bool is_published() const { return state.load(kWakeOrder) == kPublished; }
  /// Nothing where none is published; waits a moment for one under way. What it says is checked.
  std::optional<Error> get() const;

  Atomic<std::uint32_t> state;  ///< the rest is read only once it says that all is whole
  std::uint32_t code;
  std::int32_t rank;
  std::uint32_t text_bytes;
  std::uint32_t tensor_bytes;
  std::array<char, 4096> text;
  std::array<char, 1024> tensor;
};

/// A view of one id's words, all zero at first: a bit for each rank, and the id's generation, so
/// that a late arrival for an id that was given up changes nothing. Of several words whoever finds
/// all full claims the completion in the first, which also counts the rounds: no claim can be of an
/// earlier one.
///  first word: generation 16 | round 15 | claimed 1 | ranks 32
///  others:     generation 16 | 0                 16 | ranks 32
/// Thread rules: arrive() and the queries: any thread of any rank. end_round(): the
/// thread whose arrival was the last. retire(): the leader's.
class ReadyWords {
 public:
  static constexpr int kRanksPerWord = 32;

  static constexpr int words(int local_size, int ranks_per_word) {
    return (local_size + ranks_per_word - 1) / ranks_per_word;
  }

  ReadyWords(Atomic<std::uint64_t>* words, std::uint32_t generation, int local_size,
             int ranks_per_word)
      : words_(words),
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
  /// Gives the id up. False, and nothing is done, while its last arriver is at work; with
  /// `only_idle` also where a rank is seen to be ready for it.
  bool retire(bool only_idle);

 private:
  int words() const { return words(local_size_, ranks_per_word_); }
  std::uint64_t full_mask(int index) const;
  bool others_are_full() const;
  bool claim();

  Atomic<std::uint64_t>* words_;
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
  /// `complete`: the results of the ids are there.
  enum class Kind : std::uint32_t { run = 0, control = 1, complete = 2 };
  Kind kind = Kind::run;
  std::vector<Id> ids;             ///< but for Kind::control; in order
  std::vector<std::byte> payload;  ///< of Kind::control
};

/// A view of shared memory that is all zero when the first rank begins to use it. Each process has
/// its own view; all state lies in the memory, except the positions named as this rank's.
///
/// Thread rules: arrive(), signal() and the queries: any thread of any rank. next_batch() and
/// set_done(): the holder of this rank's engine lock. push_*, pop_*, retire: of the leader's.
class NodeControlBlock {
 public:
  static std::size_t bytes(const ControlBlockShape& shape) {
    return sections(nullptr, shape).bytes;
  }
  /// `flags`: of a process set, whose ranks are woken by the world's (WakeupFlags::among).
  NodeControlBlock(std::byte* memory, const ControlBlockShape& shape, int local_rank,
                   const std::optional<WakeupFlags>& flags = std::nullopt);

  int local_rank() const { return local_rank_; }
  int local_size() const { return shape_.local_size; }
  int id_capacity() const { return shape_.id_capacity; }

  // Readiness of known ids.
  using Arrival = ReadyWords::Arrival;
  /// Marks this rank's tensor `id` ready at `where`. The last arriver appends it to the log, or of
  /// several nodes to the leader's arrivals. `stale`: the id was given up. `time`: for
  /// last_arrival(); zero: not counted. `resized`: for take_resized(), of several nodes.
  Arrival arrive(Id id, Location where, std::chrono::nanoseconds time = {}, bool resized = false);
  /// The leader's, of an id that it has got by pop_arrival(): whether some rank was ready for it
  /// `resized`. It may be true of another one's, too.
  bool take_resized(Id id);
  /// Who became ready for an id last, of those that have given a time. `ranks`: by local rank, what
  /// to call them. Valid until this rank has completed its run.
  LastArrival last_arrival(Id id, std::span<const int> ranks) const;
  /// Those that are ready for `id`: ReadyWords::ranks.
  LocalRanks ready_ranks(Id id) const { return ready(id).ranks(); }
  Location location(Id id, int local_rank) const { return place(id, local_rank); }
  /// Gives the id up: ReadyWords::retire.
  bool retire(Id id, bool only_idle) { return ready(id).retire(only_idle); }

  // Ranks that have joined: they become ready for nothing.
  void set_joined(bool on);
  bool any_joined() const { return sections_.joined_count->load(kWakeOrder) != 0; }
  LocalRanks joined_ranks() const;

  // The log.
  bool log_has_pending_work() const { return log_.find(log_position_) != nullptr; }
  /// The next batch, the same on every rank of the node, into `batch`, whose memory is used again.
  /// False: there is none.
  bool next_batch(LogBatch& batch);
  /// Leader of several nodes: appends one decided batch.
  void push_run(std::span<const Id> ids, LogBatch::Kind kind = LogBatch::Kind::run);
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
  FirstCause& first_cause() const { return *sections_.first_cause; }

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
    Atomic<std::uint32_t> joined;
  };
  /// The sections of the memory, each 64-byte aligned.
  struct Sections {
    RankCell* ranks;
    Atomic<std::uint64_t>* ids;  ///< by id: ReadyWords; a last word is set before if it is resized
    Plain<Location>* locations;
    SequenceRingHead* log_head;
    SequenceRingEntry* log;
    SequenceRingHead* arrivals_head;
    SequenceRingEntry* arrivals;
    MailboxHead* mailbox_heads;
    std::byte* mailboxes;
    std::byte* control;
    StartOrderMemory* start_order;
    LaunchTicketLockMemory* launch_ticket_lock;
    WakeupFlags::Cell* wakeup_flags;
    ExchangeRoundsCell* exchanges;    ///< by local rank
    UnitProgressCell* unit_progress;  ///< likewise
    FirstCause* first_cause;
    RankStatus* statuses;  ///< by local rank
    StallBoard* stall_board;
    /// As the locations. Nothing depends on them: not of the types that the model checker explores.
    std::atomic<std::int64_t>* ready_times;
    Atomic<std::uint32_t>* joined_count;
    std::size_t bytes;
  };

  static Sections sections(std::byte* memory, const ControlBlockShape& shape);
  RankCell& rank(int r) const { return sections_.ranks[r]; }
  Atomic<std::uint64_t>* words(Id id) const { return sections_.ids + slot_of(id) * id_words_; }
  Atomic<std::uint64_t>& resized(Id id) const { return words(id)[id_words_ - 1]; }
  ReadyWords ready(Id id) const {
    return {words(id), generation_of(id), shape_.local_size, shape_.ranks_per_ready_word};
  }
  Plain<Location>& place(Id id, int local_rank) const {
    return sections_.locations[slot_of(id) * shape_.local_size + local_rank];
  }
  Mailbox mailbox(int local_rank) const {
    const std::size_t bytes = shape_.mailbox_bytes;
    const auto r = static_cast<std::size_t>(local_rank);
    return {sections_.mailbox_heads + r, sections_.mailboxes + r * bytes, bytes};
  }
  std::uint64_t slowest(Atomic<std::uint64_t> RankCell::*position, std::memory_order order) const;
  std::size_t control_bytes(std::size_t payload) const;
  std::uint64_t close_batch(std::uint64_t ticket, SequenceRingEntry& first);

  ControlBlockShape shape_;
  int local_rank_;
  std::size_t id_words_;
  Sections sections_;
  SequenceRing log_;
  SequenceRing arrivals_;
  ByteRing control_;
  WakeupFlags wakeup_flags_;

  std::uint64_t log_position_ = 0;      ///< this rank's
  std::uint64_t arrival_position_ = 0;  ///< this rank's, as leader
  std::uint64_t control_written_ = 0;   ///< this rank's, as leader
};

}  // namespace hora::internal
