/// A ring of numbered entries in shared memory: many writers, every reader sees all in one order.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/control_block/atomic.h"

namespace hora::internal {

/// Memory layout: one SequenceRingHead, then `capacity` SequenceRingEntry. A ticket (0, 1, 2, ...)
/// is an entry's place in the order; entry t lives in cell t % capacity and is visible once
/// `sequence == t + 1`.
///
/// There is no check for overrun: the caller ensures that no ticket is taken more than `capacity`
/// ahead of the slowest reader. (The control block does so by construction: an id is appended again
/// only after every reader has passed its last entry.)
///
/// Lock-free for writers; a reader never waits for a writer: an unpublished entry ends its view.
struct SequenceRingEntry {
  Atomic<std::uint64_t> sequence;
  /// First ticket after the batch that begins here; 0: not closed yet (see
  /// NodeControlBlock::close_batch).
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

}  // namespace hora::internal
