/// One allgather, alltoall or reduce-scatter under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/exchange.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/exchange_memory.h"
#include "ops/hierarchy/exchange_sizes.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// In the node every rank copies its own part straight from its peers' inputs, or gets it from
/// peers whose input it cannot read (ExchangePush): one pass. Between
/// nodes in rounds: round 0 sends the sizes (by the leaders; not of a reduce-scatter, nor where the
/// unit repeats), then round by round a chunk of every layout. Owner l gathers slice l of what its
/// node gives to each other node (a slice in one transfer is sent from where it lies), exchanges
/// with its peers, and publishes what it got, or, of a reduce-scatter, the sum over nodes in node
/// order with the scale: the bits of allreduce. Every rank copies its own part out of all owners'
/// staging; what an owner gets for itself alone, in one transfer, comes straight into its result.
///
/// Always makes progress: a round waits for earlier rounds alone (exchange_rounds.h), its crossing
/// for the same round of the peers on other nodes, and rounds are the same on all ranks, since all
/// compute them from the same extents. Allocating the result's memory waits for no rank.
/// Thread rule: the thread that holds the engine's lock.
class ExchangeRun {
 public:
  /// `first_sequence`: of the cross group's operations, one a round. Unit and context outlive it.
  ExchangeRun(const BoundUnit& unit, ExchangeContext& context, std::uint64_t first_sequence);

  /// Makes the progress that is possible now; true if there was any.
  bool advance();
  /// This rank's result is there, and it reads no peer's input any more.
  bool complete() const;
  /// The number of sequence numbers, and of rounds of ExchangeRounds, that it took; once complete.
  std::uint64_t rounds() const { return rounds_; }

 private:
  struct Crossing {
    std::uint64_t round;
    Completion work;
    std::vector<const std::byte*> summands;  ///< of a reduce-scatter: this rank's slice, by node
  };

  void prepare();
  void prepare(const ExchangeMap& map);
  bool start_rounds();
  Completion start_sizes(std::uint64_t round);
  Completion start_data(std::uint64_t round, std::vector<const std::byte*>& summands);
  bool finish_crossings();
  void sum(const Crossing& crossing);
  bool copy_rounds();
  void copy_data(std::uint64_t round);
  bool copy_own();

  bool sums() const { return unit_.unit.kind == OperationKind::reduce_scatter; }
  bool is_sizes(std::uint64_t round) const { return round == 0 && sizes_.must_be_exchanged(); }
  std::uint64_t exchange_round_of(std::uint64_t round) const {
    return context_.rounds_done + round;
  }
  /// Owner's slice of the chunk that travels in `round`.
  Range slice(const ByteLayout& layout, std::uint64_t round, int owner) const;
  std::span<const std::byte> outgoing(const ByteLayout& layout, Range range,
                                      std::byte* scratch) const;
  std::byte* landing(const ByteLayout& transfers) const;

  const BoundUnit& unit_;
  ExchangeContext& context_;
  std::uint64_t first_sequence_;
  ExchangeSizes sizes_;
  std::size_t nodes_;
  std::uint64_t rounds_;  ///< known so far

  // Once the sizes are known.
  bool prepared_ = false;
  ExchangeTarget result_;
  std::vector<ByteLayout> outgoing_, incoming_;  ///< by node
  std::size_t stream_chunk_ = 0;                 ///< bytes of each layout in one round
  std::size_t stride_ = 0;                       ///< of an owner's slices in memory
  ByteLayout own_;                               ///< inside this node, moved by this rank
  std::size_t own_done_ = 0;
  std::optional<ExchangePush> push_;  ///< where a rank pushes; its round is counted by itself

  std::uint64_t next_start_ = 0;  ///< rounds
  std::uint64_t next_copy_ = 0;
  std::deque<Crossing> crossings_;
};

}  // namespace hora::internal
