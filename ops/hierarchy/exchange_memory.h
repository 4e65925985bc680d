/// The memory of exchanges between nodes: what is sent and what is received.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/control_block/exchange_rounds.h"
#include "core/engine/node_memory.h"

namespace hora {

/// A block of this rank's node memory that grows when asked to; what was in it is lost then.
class GrowingBlock {
 public:
  explicit GrowingBlock(NodeMemory& memory) : memory_(memory) {}
  GrowingBlock(const GrowingBlock&) = delete;
  GrowingBlock& operator=(const GrowingBlock&) = delete;
  ~GrowingBlock() {
    if (block_.data) memory_.release(block_.data);
  }

  /// At least this many bytes, 64-byte aligned. Throws Error(out_of_memory).
  std::byte* reserve(std::size_t bytes);
  Location location() const { return block_.location; }

 private:
  NodeMemory& memory_;
  NodeMemory::Block block_;
  std::size_t bytes_ = 0;
};

/// Two blocks for each slot of the rounds, kept from one exchange to the next: staging, which the
/// node's ranks read, and scratch, which is private. Thread rule: one thread at a time.
class ExchangeMemory {
 public:
  explicit ExchangeMemory(NodeMemory& memory)
      : memory_(memory),
        staging_{GrowingBlock(memory), GrowingBlock(memory)},
        scratch_{GrowingBlock(memory), GrowingBlock(memory)} {}

  GrowingBlock& staging(std::uint64_t round) { return staging_[ExchangeRounds::slot(round)]; }
  GrowingBlock& scratch(std::uint64_t round) { return scratch_[ExchangeRounds::slot(round)]; }
  /// A local rank's staging or result, as seen from here.
  std::byte* at(int local_rank, Location location, std::size_t bytes) {
    return memory_.address(local_rank, location, bytes);
  }
  /// Of this rank's memory. Throws std::bad_optional_access where that is not in its windows.
  Location location_of(const std::byte* data, std::size_t bytes) const {
    return memory_.find(data, bytes).value();
  }

 private:
  NodeMemory& memory_;
  std::array<GrowingBlock, ExchangeRoundsCell::kSlots> staging_;
  std::array<GrowingBlock, ExchangeRoundsCell::kSlots> scratch_;
};

}  // namespace hora
