#include "core/control_block/node_control_block.h"

#include <hora/printable.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/checked.h"

namespace hora::internal {
namespace {

constexpr int kGenerationShift = 48;
constexpr int kRoundShift = ReadyWords::kRanksPerWord + 1;
constexpr std::uint64_t kRoundBits = (std::uint64_t{1} << (kGenerationShift - kRoundShift)) - 1;
constexpr std::uint64_t kClaimed = std::uint64_t{1} << ReadyWords::kRanksPerWord;
constexpr std::uint64_t kMaskBits = kClaimed - 1;

constexpr std::uint32_t generation_in(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> kGenerationShift);
}

/// A word of a generation for which nobody is ready.
constexpr std::uint64_t empty_word(std::uint32_t generation) {
  return std::uint64_t{generation & 0xffffU} << kGenerationShift;
}

/// The first word after `word`, when nobody is ready.
constexpr std::uint64_t next_round(std::uint64_t word, std::uint32_t generation) {
  const std::uint64_t round = ((word >> kRoundShift) + 1) & kRoundBits;
  return empty_word(generation) | (round << kRoundShift);
}

/// Control entries that may be unread in the log at once, beside one entry an id.
constexpr std::uint64_t kControlEntries = 1024;
constexpr std::size_t kMaxBatch = 1024;

/// An id is in the log once until all ranks have read it and are ready again: no overrun.
std::uint64_t ring_capacity(const ControlBlockShape& shape) {
  return static_cast<std::uint64_t>(shape.id_capacity) + kControlEntries;
}

/// In whole lines.
std::size_t id_words(const ControlBlockShape& shape) {
  const int ready = ReadyWords::words(shape.local_size, shape.ranks_per_ready_word);
  constexpr std::size_t kLine = kAlignment / sizeof(std::uint64_t);
  return align_up(static_cast<std::size_t>(ready) + 1, kLine);
}

/// Publishing takes less than a microsecond, unless the writer is preempted, or dies.
constexpr auto kPatience = std::chrono::milliseconds(10);

std::string read(std::span<const char> place, std::uint32_t bytes) {
  return {place.data(), std::min<std::size_t>(bytes, place.size())};
}

}  // namespace

#if !defined(HORA_ATOMIC_HEADER)  // the model checker has its own (tests/support/model/futex.cpp)

static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds> timeout) {
  timespec relative{};
  if (timeout) {
    const auto nanoseconds = timeout->count() > 0 ? timeout->count() : 0;
    relative.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
    relative.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  }
  // Not FUTEX_PRIVATE: the word lies in memory that several processes map.
  const long result =
      ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, timeout ? &relative : nullptr, nullptr, 0);
  if (result == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT) return;
  throw Error(ErrorCode::transport, "futex wait failed: " + std::generic_category().message(errno));
}

void futex_wake(const Atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#endif

WakeupFlags::WakeupFlags(Cell* cells, int ranks, int own_rank) : own_cell_(cells + own_rank) {
  for (int r = 0; r < ranks; ++r) cells_.push_back(cells + r);
}

WakeupFlags WakeupFlags::among(const std::vector<int>& members) const {
  std::vector<Cell*> cells;
  for (const int rank : members) cells.push_back(cells_[static_cast<std::size_t>(rank)]);
  return {std::move(cells), own_cell_};
}

bool WakeupFlags::sleeps(int rank) const {
  const Cell& target = *cells_[static_cast<std::size_t>(rank)];
  const std::uint32_t caller = target.caller.load(kWakeOrder);
  if (caller != kNoCaller) return caller == kCallerAsleep;
  return target.engine_asleep.load(kWakeOrder) != 0;
}

void WakeupFlags::signal(int rank) const {
  if (!sleeps(rank)) return;
  Cell& target = *cells_[static_cast<std::size_t>(rank)];
  auto& word =
      target.caller.load(kWakeOrder) == kCallerAsleep ? target.caller_wake : target.engine_wake;
  word.fetch_add(1, kWakeOrder);
  futex_wake(word);
}

void WakeupFlags::wake_engine() const {
  own_cell_->engine_wake.fetch_add(1, kWakeOrder);
  futex_wake(own_cell_->engine_wake);
}

bool FirstCause::publish(const Error& error) {
  std::uint32_t none = kNone;
  if (!state.compare_exchange_strong(none, kPublishing, kWakeOrder)) {
    return false;
  }
  code = static_cast<std::uint32_t>(error.code());
  rank = error.rank();
  const std::string what = printable(error.what(), text.size());
  text_bytes = static_cast<std::uint32_t>(what.copy(text.data(), text.size()));
  tensor_bytes = static_cast<std::uint32_t>(error.tensor().copy(tensor.data(), tensor.size()));
  state.store(kPublished, kWakeOrder);
  return true;
}

std::optional<Error> FirstCause::get() const {
  const auto begin = std::chrono::steady_clock::now();
  while (state.load(kWakeOrder) == kPublishing &&
         std::chrono::steady_clock::now() - begin < kPatience) {
    std::this_thread::yield();
  }
  if (!is_published()) return std::nullopt;
  const auto known = static_cast<ErrorCode>(static_cast<std::uint8_t>(code));
  return Error(is_enumerator(known) ? known : ErrorCode::transport, read(text, text_bytes), rank,
               read(tensor, tensor_bytes));
}

bool ReadyWords::is_current() const {
  return generation_in(words_[0].load(std::memory_order_acquire)) == generation_;
}

std::uint64_t ReadyWords::full_mask(int index) const {
  const int ranks = std::min(ranks_per_word_, local_size_ - index * ranks_per_word_);
  return (std::uint64_t{1} << ranks) - 1;
}

ReadyWords::Arrival ReadyWords::arrive(int local_rank) {
  const int index = local_rank / ranks_per_word_;
  const std::uint64_t own_bit = std::uint64_t{1} << (local_rank % ranks_per_word_);
  Atomic<std::uint64_t>& own = words_[index];
  std::uint64_t before = own.load(std::memory_order_relaxed);
  do {
    if (generation_in(before) != generation_) return Arrival::stale;
  } while (!own.compare_exchange_weak(before, before | own_bit, kWakeOrder));
  if (((before | own_bit) & kMaskBits) != full_mask(index)) return Arrival::waiting;
  return words() == 1 || claim() ? Arrival::complete : Arrival::waiting;
}

/// Claims a round that others_are_full() has seen: they are cleared only once the first is claimed.
bool ReadyWords::claim() {
  std::uint64_t first = words_[0].load(kWakeOrder);
  do {
    const bool full = generation_in(first) == generation_ && (first & kClaimed) == 0 &&
                      (first & kMaskBits) == full_mask(0);
    if (!full || !others_are_full()) return false;
  } while (!words_[0].compare_exchange_weak(first, first | kClaimed, kWakeOrder));
  return true;
}

bool ReadyWords::others_are_full() const {
  for (int index = 1; index < words(); ++index) {
    const std::uint64_t other = words_[index].load(kWakeOrder);
    if (generation_in(other) != generation_ || (other & kMaskBits) != full_mask(index)) {
      return false;
    }
  }
  return true;
}

void ReadyWords::end_round() {
  for (int index = 1; index < words(); ++index) {
    words_[index].store(empty_word(generation_), kWakeOrder);
  }
  const std::uint64_t first = words_[0].load(std::memory_order_relaxed);
  words_[0].store(next_round(first, generation_), kWakeOrder);
}

LocalRanks ReadyWords::ranks() const {
  std::uint64_t first = words_[0].load(kWakeOrder);
  for (;;) {
    if (generation_in(first) != generation_) return {};
    if ((first & kClaimed) != 0) return all_local_ranks(static_cast<std::size_t>(local_size_));
    LocalRanks ranks(first & kMaskBits);
    for (int index = 1; index < words(); ++index) {
      const std::uint64_t other = words_[index].load(kWakeOrder);
      if (generation_in(other) != generation_) continue;
      ranks |= LocalRanks(other & kMaskBits) << static_cast<std::size_t>(index * ranks_per_word_);
    }
    // Words are cleared while the first is claimed, and its round has another number afterwards.
    const std::uint64_t again = words() == 1 ? first : words_[0].load(kWakeOrder);
    if (again == first) return ranks;
    first = again;
  }
}

bool ReadyWords::retire(bool only_idle) {
  const std::uint32_t next = generation_ + 1;
  std::uint64_t first = words_[0].load(kWakeOrder);
  do {
    if (generation_in(first) != generation_) return true;
    if (only_idle && ranks().any()) return false;
    // All full: the last arriver is about to append the id and to end the round.
    const bool full = (first & kMaskBits) == full_mask(0) && others_are_full();
    if (full || (first & kClaimed) != 0) return false;
  } while (!words_[0].compare_exchange_weak(first, next_round(first, next), kWakeOrder));
  for (int index = 1; index < words(); ++index) words_[index].store(empty_word(next), kWakeOrder);
  return true;
}

/// `memory` null: how many bytes they take, alone.
NodeControlBlock::Sections NodeControlBlock::sections(std::byte* memory,
                                                      const ControlBlockShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.local_size);
  const auto ids = static_cast<std::size_t>(shape.id_capacity);
  Sections sections{};
  const auto take = [&]<class T>(T*& section, std::size_t count = 1) {
    if (memory) section = reinterpret_cast<T*>(memory + sections.bytes);
    sections.bytes += align_up(count * sizeof(T));
  };
  take(sections.ranks, ranks);
  take(sections.ids, ids * id_words(shape));
  take(sections.locations, ids * ranks);
  take(sections.log_head);
  take(sections.log, ring_capacity(shape));
  take(sections.arrivals_head);
  take(sections.arrivals, ring_capacity(shape));
  take(sections.mailbox_heads, ranks);
  take(sections.mailboxes, ranks * shape.mailbox_bytes);
  take(sections.control, shape.control_bytes);
  take(sections.start_order);
  take(sections.launch_ticket_lock);
  take(sections.wakeup_flags, ranks);
  take(sections.exchanges, ranks);
  take(sections.unit_progress, ranks);
  take(sections.first_cause);
  take(sections.statuses, ranks);
  take(sections.stall_board);
  take(sections.ready_times, ids * ranks);
  take(sections.joined_count);
  return sections;
}

NodeControlBlock::NodeControlBlock(std::byte* memory, const ControlBlockShape& shape,
                                   int local_rank, const std::optional<WakeupFlags>& flags)
    : shape_(shape),
      local_rank_(local_rank),
      id_words_(id_words(shape)),
      sections_(sections(memory, shape)),
      log_(sections_.log_head, sections_.log, ring_capacity(shape)),
      arrivals_(sections_.arrivals_head, sections_.arrivals, ring_capacity(shape)),
      control_(sections_.control, shape.control_bytes),
      wakeup_flags_(flags ? *flags
                          : WakeupFlags(sections_.wakeup_flags, shape.local_size, local_rank)) {}

NodeControlBlock::Arrival NodeControlBlock::arrive(Id id, Location where,
                                                   std::chrono::nanoseconds time, bool resized) {
  ReadyWords ready = this->ready(id);
  if (!ready.is_current()) return Arrival::stale;
  place(id, local_rank_) = where;
  sections_.ready_times[slot_of(id) * shape_.local_size + local_rank_].store(
      time.count(), std::memory_order_relaxed);
  if (resized) this->resized(id).store(1, std::memory_order_relaxed);
  const Arrival arrival = ready.arrive(local_rank_);
  if (arrival != Arrival::complete) return arrival;

  // A rank can be ready again only after it has seen the entry: so the round ends before, and the
  // ticket is taken before the leader may see that none is ready and give the id up.
  SequenceRing& ring = shape_.single_node ? log_ : arrivals_;
  const std::uint64_t ticket = ring.take_ticket();
  ready.end_round();
  ring.publish(ticket, static_cast<std::uint32_t>(LogBatch::Kind::run), id, 0, 0);
  return Arrival::complete;
}

LastArrival NodeControlBlock::last_arrival(Id id, std::span<const int> ranks) const {
  LastArrival last;
  std::int64_t at = 0, before = 0;
  for (int r = 0; r < shape_.local_size; ++r) {
    const std::int64_t time =
        sections_.ready_times[slot_of(id) * shape_.local_size + r].load(std::memory_order_relaxed);
    if (time > at) {
      before = at;
      at = time;
      last.rank = ranks[static_cast<std::size_t>(r)];
    } else {
      before = std::max(before, time);
    }
  }
  last.at = std::chrono::nanoseconds(at);
  if (before > 0) last.late = std::chrono::nanoseconds(at - before);
  return last;
}

bool NodeControlBlock::take_resized(Id id) {
  const bool taken = resized(id).load(std::memory_order_relaxed) != 0;
  if (taken) resized(id).store(0, std::memory_order_relaxed);
  return taken;
}

void NodeControlBlock::set_joined(bool on) {
  Atomic<std::uint32_t>& own = rank(local_rank_).joined;
  if ((own.load(std::memory_order_relaxed) != 0) == on) return;
  own.store(on ? 1 : 0, kWakeOrder);
  sections_.joined_count->fetch_add(on ? 1U : ~0U, kWakeOrder);
}

LocalRanks NodeControlBlock::joined_ranks() const {
  LocalRanks joined;
  for (int r = 0; r < shape_.local_size; ++r) {
    joined[static_cast<std::size_t>(r)] = rank(r).joined.load(kWakeOrder) != 0;
  }
  return joined;
}

std::uint64_t NodeControlBlock::close_batch(std::uint64_t ticket, SequenceRingEntry& first) {
  std::uint64_t end = first.batch_end.load(std::memory_order_acquire);
  if (end != 0) return end;
  // The first reader closes the batch at what is visible now; all others use the same end.
  std::uint64_t proposal = ticket + 1;
  while (proposal - ticket < kMaxBatch) {
    const SequenceRingEntry* entry = log_.find(proposal);
    if (!entry || entry->kind != static_cast<std::uint32_t>(LogBatch::Kind::run)) break;
    ++proposal;
  }
  if (first.batch_end.compare_exchange_strong(end, proposal, std::memory_order_acq_rel)) {
    return proposal;
  }
  return end;
}

bool NodeControlBlock::next_batch(LogBatch& batch) {
  SequenceRingEntry* first = log_.find(log_position_);
  if (!first) return false;
  RankCell& own = rank(local_rank_);
  batch.ids.clear();
  batch.payload.clear();
  const std::uint32_t kind = first->kind;
  batch.kind = static_cast<LogBatch::Kind>(kind);
  if (batch.kind == LogBatch::Kind::control) {
    batch.payload = control_.read(first->value, first->length);
    own.control_read.store(first->value + control_bytes(first->length), std::memory_order_release);
    log_position_ += 1;
  } else {
    const std::uint64_t end = close_batch(log_position_, *first);
    const auto check = [&](bool whole) {
      if (whole) return;
      throw damaged_page(
          fmt::format("its log has a batch of {} ids, of {} at most, or not all of them",
                      end - log_position_, ring_capacity(shape_)));
    };
    check(end > log_position_ && end - log_position_ <= ring_capacity(shape_));
    batch.ids.reserve(end - log_position_);
    for (; log_position_ < end; ++log_position_) {
      // The reader that closed the batch saw these entries, so they are visible here too.
      const SequenceRingEntry* entry = log_.find(log_position_);
      check(entry != nullptr);
      batch.ids.push_back(static_cast<Id>(entry->value));
    }
  }
  return true;
}

void NodeControlBlock::push_run(std::span<const Id> ids, LogBatch::Kind kind) {
  if (ids.empty()) return;
  std::vector<std::uint64_t> tickets;
  for (std::size_t i = 0; i < ids.size(); ++i) tickets.push_back(log_.take_ticket());
  const std::uint64_t end = tickets.back() + 1;
  // Last first: a reader that sees the first entry of a batch finds all of it.
  for (std::size_t i = ids.size(); i-- > 0;) {
    log_.publish(tickets[i], static_cast<std::uint32_t>(kind), ids[i], 0, end);
  }
}

std::uint64_t NodeControlBlock::slowest(Atomic<std::uint64_t> RankCell::*position,
                                        std::memory_order order) const {
  std::uint64_t least = UINT64_MAX;
  for (int r = 0; r < shape_.local_size; ++r) {
    least = std::min(least, (rank(r).*position).load(order));
  }
  return least;
}

/// Bytes that a payload takes of the control ring: so many that no more than kControlEntries fit.
std::size_t NodeControlBlock::control_bytes(std::size_t payload) const {
  return std::max(payload, shape_.control_bytes / kControlEntries + 1);
}

bool NodeControlBlock::push_control(std::span<const std::byte> payload) {
  const std::size_t bytes = control_bytes(payload.size());
  const auto slowest_read = slowest(&RankCell::control_read, std::memory_order_acquire);
  if (!control_.fits(control_written_, slowest_read, bytes)) return false;
  control_.write(control_written_, payload);
  const std::uint64_t ticket = log_.take_ticket();
  log_.publish(ticket, static_cast<std::uint32_t>(LogBatch::Kind::control), control_written_,
               static_cast<std::uint32_t>(payload.size()), ticket + 1);
  control_written_ += bytes;
  return true;
}

std::optional<Id> NodeControlBlock::pop_arrival() {
  const SequenceRingEntry* entry = arrivals_.find(arrival_position_);
  if (!entry) return std::nullopt;
  ++arrival_position_;
  return static_cast<Id>(entry->value);
}

bool NodeControlBlock::leader_has_pending_work() const {
  if (arrivals_.find(arrival_position_)) return true;
  for (int r = 0; r < shape_.local_size; ++r) {
    if (!mailbox(r).empty()) return true;
  }
  return false;
}

void NodeControlBlock::set_done(std::uint64_t units) {
  rank(local_rank_).done.store(units, kWakeOrder);
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r == local_rank_ || !wakeup_flags_.sleeps(r)) continue;
    const std::uint64_t awaited = rank(r).awaited.load(kWakeOrder);
    if (awaited != 0 && units >= awaited) signal(r);
  }
}

std::vector<int> NodeControlBlock::behind(std::uint64_t units) const {
  std::vector<int> ranks;
  for (int r = 0; r < shape_.local_size; ++r) {
    if (rank(r).done.load(kWakeOrder) < units) ranks.push_back(r);
  }
  return ranks;
}

void NodeControlBlock::signal_others() {
  for (int r = 0; r < shape_.local_size; ++r) {
    if (r != local_rank_) signal(r);
  }
}

}  // namespace hora::internal
