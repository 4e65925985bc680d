/// Which of a node's ranks logs a stall, and when.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/control_block/tensor_id.h"

namespace hora::internal {

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
  /// True for one rank at a time: it logs, and no rank of the node does for `interval`. Another
  /// rank has `head_start` to do so first.
  bool claim(std::chrono::nanoseconds time, std::chrono::nanoseconds interval,
             std::chrono::nanoseconds head_start = {}) {
    std::int64_t next = next_report_.load();
    return (time - head_start).count() >= next &&
           next_report_.compare_exchange_strong(next, (time + interval).count());
  }

  /// The leader has got a message from the leader above it.
  void note_heard(std::chrono::nanoseconds time) {
    heard_.store(time.count(), std::memory_order_relaxed);
  }
  /// When that was last; zero: never.
  std::chrono::nanoseconds heard() const {
    return std::chrono::nanoseconds(heard_.load(std::memory_order_relaxed));
  }

 private:
  std::array<std::atomic<bool>, kMaxLocalSize> waiting_;
  std::atomic<std::int64_t> next_report_;
  std::atomic<std::int64_t> heard_;
};

}  // namespace hora::internal
