/// What the engine needs from the transports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/control_block/node_control_block.h"
#include "core/plan/bound_unit.h"

namespace hora {

/// Memory of this rank that its node's other ranks can read and write, and theirs as seen from
/// here. Thread rule: any thread.
class NodeMemory {
 public:
  struct Block {
    std::byte* data = nullptr;
    Location location;
  };
  virtual ~NodeMemory() = default;
  /// 64-byte aligned. Throws Error(out_of_memory).
  virtual Block allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  /// Where [data, data + bytes) lies in this rank's windows, if it does.
  virtual std::optional<Location> find(const std::byte* data, std::size_t bytes) const = 0;
  /// Where a peer keeps `bytes` bytes, mapped when first asked for. Throws Error(transport) where
  /// that is not inside one of its windows.
  virtual std::byte* address(int local_rank, Location location, std::size_t bytes) = 0;
  /// memcpy from this rank's private memory into a block that peers have read, and will read.
  virtual void publish(std::byte* block, const std::byte* data, std::size_t bytes) = 0;
};

/// Runs units in the order in which they are started, without ever blocking.
/// Thread rule: the thread that holds the engine's lock.
class DataPath {
 public:
  virtual ~DataPath() = default;
  /// Takes the unit in; its number is one more than the last one's, beginning with 1.
  virtual void start(BoundUnit unit) = 0;
  /// Makes what progress is possible now; true if there was any.
  virtual bool advance() = 0;
  /// Units 1 .. n are complete: this rank's memory holds their results, and no peer accesses it.
  virtual std::uint64_t completed() const = 0;
  /// The unit whose completion depends on local peers alone, 0 where there is none.
  virtual std::uint64_t awaited() const = 0;
  /// True while something is under way that only polling moves (the network).
  virtual bool polls() const = 0;
};

}  // namespace hora
