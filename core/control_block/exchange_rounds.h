/// Progress of a node's ranks through the rounds of their exchanges, and the locations of data
/// received from other nodes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/control_block/atomic.h"
#include "core/control_block/tensor_id.h"

namespace hora::internal {

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

}  // namespace hora::internal
