/// One order in which the collectives of all process sets are enqueued on a node's devices.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/control_block/atomic.h"

namespace hora::internal {

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

/// A collective on devices occupies each of them until all have started it. Two sets whose
/// collectives are enqueued on two devices in different orders deadlock (each waits for the other).
/// So the launches of the node's sets take turns: a set has its turn when all its members of this
/// node are ready to enqueue, and passes it on when all have done so. During its turn a set waits
/// only for its members' engines, which never block; so sets wait for each other in the order of
/// their tickets: deadlock-free. Thread rule: the thread that holds the engine's lock.
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
