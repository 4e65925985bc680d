/// The memory of exchanges, and the copies inside a node: to and from staging, into the own result,
/// and into peers' results.
#pragma once

#include <hora/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/control_block/node_progress.h"
#include "core/engine/interfaces.h"
#include "core/negotiation/topology.h"
#include "core/plan/exchange.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

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
  NodeMemory::MemoryBlock block_;
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

struct ExchangeContext {
  Topology topology;  ///< of the set
  int node = 0;       ///< this rank's
  int local_rank = 0;
  int slices = 1;
  std::size_t chunk_bytes = 0;
  ExchangeRounds rounds;
  ExchangeMemory memory;
  CrossGroup* cross = nullptr;            ///< null on local ranks without a slice, and in one node
  std::uint64_t rounds_done = 0;          ///< of the exchanges that are complete
  std::uint64_t job_memory = UINT64_MAX;  ///< bytes that all results of an exchange can have

  /// The rank in the set of a local rank of this node.
  int rank_of(int member_of_node) const {
    return topology
        .ranks_of_node[static_cast<std::size_t>(node)][static_cast<std::size_t>(member_of_node)];
  }
};

/// The result of an exchange as the target of copies: past the caches where it is too long to be
/// read from them afterwards.
class ExchangeTarget {
 public:
  ExchangeTarget() noexcept = default;
  ExchangeTarget(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* at(std::size_t offset) const { return data_ + offset; }
  void copy(std::size_t offset, const std::byte* in, std::size_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// From the node's inputs to `out`, where the layout's bytes lie one after the other. Sums are not
/// scaled.
void gather(const BoundUnit& unit, const ByteLayout& layout, std::byte* out);

/// From `in`, where the layout's bytes lie one after the other, those that come to `local_rank`
/// into its result.
void scatter(const ByteLayout& layout, int local_rank, const std::byte* in,
             const ExchangeTarget& result);

/// Straight from the node's inputs into this rank's result what comes to `local_rank`, this one, in
/// local rank order; sums are scaled.
void copy_to_result(const BoundUnit& unit, const ByteLayout& layout, int local_rank,
                    const ExchangeTarget& result);

/// Direct writes of a node's ranks into one another's results. A rank that pushes must know where
/// the results are. Those that are as their ranks expected are known from the start; if one is not,
/// every rank publishes the place of its result in one round of ExchangeRounds. All ranks of the
/// node decide that alike, from the same headers. Thread rule: the thread that holds the engine's
/// lock.
class ExchangePush {
 public:
  /// At least one rank pushes.
  static bool is_needed(const BoundUnit& unit);

  /// Where it is needed. `result`: this rank's, allocated. Unit and context outlive it.
  ExchangePush(const BoundUnit& unit, ExchangeContext& context, const ExchangeMap& map,
               const std::byte* result, std::size_t bytes);

  /// The number of rounds of ExchangeRounds that it takes: 0 or 1.
  std::uint64_t rounds() const { return exchange_round_ ? 1 : 0; }
  /// Does what can be done without blocking; true when push() may follow.
  bool poll();
  bool is_ready() const { return ready_; }
  /// If this rank pushes: those of the transfers that go to others, from its input into their
  /// results.
  void push(const ByteLayout& transfers) const;

 private:
  bool all_as_expected(const ExchangeMap& map) const;
  bool i_push() const;
  void find_result(int local_rank, Location where);

  const BoundUnit& unit_;
  ExchangeContext& context_;
  Location own_result_ = kNowhere;
  std::vector<std::size_t> lengths_;  ///< of the results, by local rank; where this rank pushes
  std::optional<std::uint64_t> exchange_round_;
  bool told_ = false;
  bool ready_ = false;
  std::vector<std::byte*> results_;  ///< likewise; null: this rank's own, and empty ones
};

}  // namespace hora::internal
