/// Rings in shared memory: of numbered entries, by many writers, which every reader sees in one
/// order; and of messages, by one writer.
#pragma once

#include <hora/error.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/control_block/atomic.h"

namespace hora::internal {

/// One SequenceRingHead, then `capacity` SequenceRingEntry. A ticket (0, 1, 2, ...) is an entry's
/// place in the order; entry t lives in cell t % capacity and is visible once `sequence == t + 1`.
/// Lock-free for writers; a reader never waits for one: an unpublished entry ends its view. The
/// caller ensures that no ticket is taken more than `capacity` ahead of the slowest reader (the
/// control block does: an id is appended again only after every reader has passed its last entry).
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
      throw Error(ErrorCode::transport, "the node's shared page is damaged: a message of " +
                                            std::to_string(length) + " bytes in a ring of " +
                                            std::to_string(capacity_));
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
      throw Error(ErrorCode::transport,
                  "the node's shared page is damaged: a message of " + std::to_string(length) +
                      " bytes where " + std::to_string(there) + " are said to be in a ring of " +
                      std::to_string(ring_.capacity()));
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

}  // namespace hora::internal
