/// Progress of a node's ranks: how many bytes of its units each has made readable (the root of a
/// broadcast of the whole, of a sum by memory node each rank of its slice), the one order in which
/// all start the collective steps of the data path, that in which all process sets enqueue on the
/// node's devices, and the rounds of their exchanges, with locations of data from other nodes.
#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "core/control_block/atomic.h"
#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// One for each local rank, in memory that the node shares, all zero at first.
struct alignas(64) UnitProgressCell {
  Atomic<std::uint64_t> position;
};

/// A rank publishes, unit by unit in order, how many of their bytes may be read; others follow.
/// Thread rule: the thread that holds the engine's lock.
class UnitProgress {
 public:
  /// Published in steps of this many bytes.
  static constexpr std::size_t kStep = std::size_t{1} << 15;

  UnitProgress(UnitProgressCell* cells, int local_rank) : cells_(cells), local_rank_(local_rank) {}

  /// The first `bytes` of unit `unit` (1, 2, ...) may be read, in whole steps.
  void leave(std::uint64_t unit, std::size_t bytes) {
    publish(unit << kStepBits | std::min<std::uint64_t>(bytes / kStep, kMostSteps));
  }
  /// All of unit `unit` may be read.
  void leave_all(std::uint64_t unit) { publish((unit + 1) << kStepBits); }
  /// Bytes of unit `unit` that this rank may read of what that one publishes.
  std::size_t readable(int local_rank, std::uint64_t unit) const {
    const std::uint64_t position = cells_[local_rank].position.load(std::memory_order_acquire);
    if (position >> kStepBits < unit) return 0;
    if (position >> kStepBits > unit) return std::numeric_limits<std::size_t>::max();
    return static_cast<std::size_t>(position & kMostSteps) * kStep;
  }

 private:
  static constexpr int kStepBits = 24;
  static constexpr std::uint64_t kMostSteps = (std::uint64_t{1} << kStepBits) - 1;
  void publish(std::uint64_t position) {
    cells_[local_rank_].position.store(position, std::memory_order_release);
  }

  UnitProgressCell* cells_;
  int local_rank_;
};

/// In memory that the node shares, all zero at first.
struct StartOrderMemory {
  /// Steps that the leader can be ahead of the slowest rank. It is ahead by twice the slots of the
  /// pipeline at most, because a chunk's slot is used again only after all ranks have started it.
  static constexpr std::uint64_t kCapacity = 1024;
  alignas(64) Atomic<std::uint64_t> started;
  std::array<Atomic<std::uint8_t>, kCapacity> steps;
};

/// NCCL wants all ranks of a communicator to issue its calls in one order. Which step is possible
/// first depends on time: the leader decides. Thread rule: the holder of the engine's lock.
class StartOrder {
 public:
  enum class Step : std::uint8_t { reduce_scatter = 1, all_gather = 2 };

  StartOrder(StartOrderMemory& memory, bool leads) : memory_(memory), leads_(leads) {}

  /// Whether this rank may start a step of this kind now.
  bool allows(Step step) const {
    if (leads_) return true;
    return steps_ < memory_.started.load(std::memory_order_acquire) &&
           cell(steps_).load() == code(step);
  }
  /// This rank starts it.
  void start(Step step) {
    if (leads_) {
      cell(steps_).store(code(step), std::memory_order_relaxed);
      memory_.started.store(steps_ + 1, std::memory_order_release);
    }
    ++steps_;
  }

 private:
  static std::uint8_t code(Step step) { return static_cast<std::uint8_t>(step); }
  Atomic<std::uint8_t>& cell(std::uint64_t number) const {
    return memory_.steps[number % StartOrderMemory::kCapacity];
  }

  StartOrderMemory& memory_;
  bool leads_;
  std::uint64_t steps_ = 0;  ///< steps that this rank has started
};

/// One for each local rank, in memory that the node shares, all zero at first.
struct alignas(64) ExchangeRoundsCell {
  /// Round r + kSlots reuses the slot of round r.
  static constexpr std::size_t kSlots = 2;
  std::array<Location, kSlots> staging;      ///< by slot; its owner's, and read once crossed
  Atomic<std::uint64_t> crossed;             ///< rounds whose data lie in this rank's staging
  alignas(64) Atomic<std::uint64_t> copied;  ///< rounds from which this rank has copied its part
};

/// Rounds are numbered over all exchanges of the control block, on every local rank alike. The
/// owner of a slice fills a slot of its staging (from other nodes), and publishes it; every rank
/// copies from it, and counts that; then the slot is free for round + kSlots.
///
/// Deadlock-free because filling round k waits for the copies of round k - 2 alone, and copying
/// round k for its filling alone: the rank that is furthest behind always makes progress.
/// Thread rule: the thread that holds the engine's lock.
class ExchangeRounds {
 public:
  ExchangeRounds(ExchangeRoundsCell* cells, int local_size, int local_rank)
      : cells_(cells), local_size_(local_size), local_rank_(local_rank) {}

  static std::size_t slot(std::uint64_t round) { return round % ExchangeRoundsCell::kSlots; }

  /// Owners: all local ranks have finished with what was in the slot of `round`.
  bool may_fill(std::uint64_t round) const {
    for (int r = 0; r < local_size_; ++r) {
      if (cells_[r].copied.load(std::memory_order_acquire) + ExchangeRoundsCell::kSlots <= round) {
        return false;
      }
    }
    return true;
  }
  /// Owners, in the order of the rounds: this rank's slice of `round` lies at `where`.
  void publish(std::uint64_t round, Location where) {
    cells_[local_rank_].staging[slot(round)] = where;
    cells_[local_rank_].crossed.store(round + 1, std::memory_order_release);
  }
  /// Local ranks 0 .. owners-1 have all published their slices of `round`.
  bool published(std::uint64_t round, int owners) const {
    for (int r = 0; r < owners; ++r) {
      if (cells_[r].crossed.load(std::memory_order_acquire) <= round) return false;
    }
    return true;
  }
  /// Valid from published() until this rank calls copied().
  Location staging(int owner, std::uint64_t round) const {
    return cells_[owner].staging[slot(round)];
  }
  /// In the order of the rounds: this rank no longer reads what was published for `round`.
  void copied(std::uint64_t round) {
    cells_[local_rank_].copied.store(round + 1, std::memory_order_release);
  }

 private:
  ExchangeRoundsCell* cells_;
  int local_size_;
  int local_rank_;
};

/// In memory that the node shares, all zero at first: one for each process set.
struct LaunchTicketLockMemory {
  // The node's: all sets use those of the world.
  alignas(64) Atomic<std::uint64_t> tickets;  ///< taken by leaders
  Atomic<std::uint64_t> served;

  // The set's own.
  alignas(64) Atomic<std::uint64_t> arrived;  ///< launches, added up over the members
  Atomic<std::uint64_t> granted;              ///< launches
  Atomic<std::uint64_t> enqueued;             ///< launches, added up over the members
  /// Passed by the leader to the others before the first launch.
  std::array<std::byte, 128> note;
};

/// A collective on devices occupies each of them until all have started it, so sets that enqueue in
/// different orders deadlock. So a node's sets take turns, from when all members of this node are
/// ready to enqueue until all have. During its turn a set waits only for its members' engines,
/// which never block. Thread rule: the thread that holds the engine's lock.
class LaunchTicketLock {
 public:
  /// `members`: of the set, on this node. References outlive it.
  LaunchTicketLock(LaunchTicketLockMemory& node, LaunchTicketLockMemory& set, bool leads,
                   int members)
      : node_(node), set_(set), leads_(leads), members_(static_cast<std::uint64_t>(members)) {}

  /// Polled: whether this rank may enqueue its next launch.
  bool has_turn() {
    if (!has_arrived_) {
      has_arrived_ = true;
      set_.arrived.fetch_add(1, std::memory_order_acq_rel);
    }
    if (set_.granted.load(std::memory_order_acquire) > launches_) return true;
    return leads_ && take();
  }
  /// This rank has enqueued it.
  void done() {
    ++launches_;
    has_arrived_ = false;
    const bool all =
        set_.enqueued.fetch_add(1, std::memory_order_acq_rel) + 1 == members_ * launches_;
    if (all) node_.served.fetch_add(1, std::memory_order_release);
  }
  bool leads() const { return leads_; }
  std::array<std::byte, 128>& note() const { return set_.note; }

 private:
  bool take() {
    if (!has_ticket_) {
      if (set_.arrived.load(std::memory_order_acquire) < members_ * (launches_ + 1)) return false;
      ticket_ = node_.tickets.fetch_add(1, std::memory_order_relaxed);
      has_ticket_ = true;
    }
    if (node_.served.load(std::memory_order_acquire) != ticket_) return false;
    has_ticket_ = false;
    set_.granted.store(launches_ + 1, std::memory_order_release);
    return true;
  }

  LaunchTicketLockMemory& node_;
  LaunchTicketLockMemory& set_;
  bool leads_;
  std::uint64_t members_;
  std::uint64_t launches_ = 0;  ///< of this rank that are enqueued
  bool has_arrived_ = false;    ///< at the next one
  bool has_ticket_ = false;
  std::uint64_t ticket_ = 0;
};

}  // namespace hora::internal
