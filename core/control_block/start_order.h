/// The one order in which all ranks of a node start the collective steps of the data path.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/control_block/atomic.h"

namespace hora::internal {

/// In memory that the node shares, all zero at first.
struct StartOrderMemory {
  /// Steps that the leader can be ahead of the slowest rank. It is ahead by twice the slots of the
  /// pipeline at most, because a chunk's slot is used again only after all ranks have started it.
  static constexpr std::uint64_t kCapacity = 1024;
  alignas(64) Atomic<std::uint64_t> started;
  std::array<Atomic<std::uint8_t>, kCapacity> steps;
};

/// NCCL wants all ranks of a communicator to issue its calls in one order. Which step is possible
/// first (the next chunk's way in, or the way out of one that has crossed the network) depends on
/// time, so the leader decides and the others follow. A fixed order would have to drain the
/// pipeline whenever nothing further has been decided.
/// Thread rule: the thread that holds the engine's lock.
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

}  // namespace hora::internal
