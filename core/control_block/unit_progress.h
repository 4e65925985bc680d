/// How many bytes of its units each rank of a node has made readable for the others: the root of a
/// broadcast of the whole, of a sum by memory node each rank of its slice.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/control_block/atomic.h"

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

}  // namespace hora::internal
