/// One allgather, alltoall or reduce-scatter under way: what its ranks bring, its memory and the
/// copies inside a node, its rounds between nodes; and what ranks tell one another before one on
/// devices begins.
#pragma once

#include <hora/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/control_block/node_progress.h"
#include "core/engine/interfaces.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// The extents of an allgather or alltoall, which nodes send one another in its first round where
/// they are others than in its last run: as they are in memory, in the order of local ranks.
/// References outlive it. Thread rule: one thread at a time.
class ExchangeSizes {
 public:
  /// Throws Error(transport) where a run repeats what this rank does not know.
  ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node);

  /// False: a reduce-scatter, all ranks are in this node, or the unit repeats.
  bool must_be_exchanged() const { return come_from_others() && !unit_.exchange.repeats; }
  /// Length of what a node sends; what comes from node n belongs at n * stride().
  std::size_t bytes_of(int node) const;
  std::size_t stride() const;
  /// Writes what this node sends.
  void write(std::byte* out) const;
  /// Takes in what all other nodes have sent.
  void read(const std::byte* in);

  /// Extents of all ranks, once read or where nothing has to be sent. Valid until end_run().
  ExchangeExtents extents() const;
  /// The extents are not used any more.
  void end_run() { last_->end_run(); }

 private:
  const std::vector<int>& ranks_of(int node) const;
  bool come_from_others() const;

  const BoundUnit& unit_;
  const Topology& topology_;
  int node_;
  std::size_t each_;  ///< extents of one rank
  std::shared_ptr<LastExtents> last_;
};

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
  /// Location of this rank's memory. Throws std::bad_optional_access where that is not in its
  /// windows.
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

/// Direct writes of a node's ranks into one another's results. Results that are as their ranks
/// expected have known places; if one is not, every rank publishes its own in one round of
/// ExchangeRounds. All ranks of the node decide that alike, from the same headers. Thread rule: the
/// thread that holds the engine's lock.
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

/// A round (ExchangeRounds) in which each node's leader sends some bytes to all the others, and
/// every rank reads what has come. Thread rule: the thread that holds the engine's lock.
class LeadersRound {
 public:
  /// `lengths`: of what each node brings, by node. The context outlives it.
  LeadersRound(ExchangeContext& context, std::uint64_t round, std::uint64_t sequence,
               std::vector<std::size_t> lengths);
  /// The leaders bring the extents of their nodes.
  LeadersRound(ExchangeContext& context, std::uint64_t round, std::uint64_t sequence,
               const ExchangeSizes& sizes);

  bool leads() const { return context_.local_rank == 0; }
  /// The leader's, once: what this node brings.
  void bring(std::span<const std::byte> bytes);
  /// Polled: what all nodes have brought, that of node n at n * stride(); null: not there yet.
  const std::byte* poll();
  std::size_t stride() const { return stride_; }
  /// It has been read, on this rank.
  void leave() { context_.rounds.copied(round_); }

 private:
  bool publish();
  std::size_t bytes() const { return lengths_.size() * stride_; }

  ExchangeContext& context_;
  std::uint64_t round_;
  std::uint64_t sequence_;
  std::vector<std::size_t> lengths_;
  std::size_t stride_;
  std::vector<std::byte> own_;  ///< of a leader, until its message has left
  bool brought_ = false;
  bool crossing_ = false;
  bool published_ = false;
  Completion crossed_;
};

/// In the node every rank copies its own part straight from its peers' inputs, or gets it from
/// peers whose input it cannot read (ExchangePush): one pass. Between nodes in rounds: round 0
/// sends the sizes (LeadersRound; not of a reduce-scatter, nor where the unit repeats), then each
/// round a chunk of every layout. Owner l gathers slice l of what its node gives to each other node
/// (one transfer is sent from where it lies), exchanges with its peers, and publishes what it got,
/// or, of a reduce-scatter, the sum over nodes in node order with the scale: the bits of allreduce.
/// Every rank copies its part out of all owners' staging; what an owner gets for itself alone, in
/// one transfer, comes straight into its result.
///
/// Always makes progress: a round waits for earlier rounds alone (node_progress.h), its crossing
/// for the same round of the peers, and rounds are the same on all ranks, computed from the same
/// extents. Thread rule: the thread that holds the engine's lock.
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
  Completion start_data(std::uint64_t round, std::vector<const std::byte*>& summands);
  bool finish_crossings();
  void sum(const Crossing& crossing);
  bool copy_rounds();
  void copy_data(std::uint64_t round);
  bool copy_own();

  bool sums() const { return unit_.unit.kind == OperationKind::reduce_scatter; }
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
  std::optional<LeadersRound> sizes_round_;  ///< until the sizes are known
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

  std::uint64_t next_start_;  ///< rounds
  std::uint64_t next_copy_;
  std::deque<Crossing> crossings_;
};

/// For a set of one node: its ranks' headers say all.
class AgreementInNode final : public ExchangeAgreement {
 public:
  /// The unit outlives it.
  AgreementInNode(const BoundUnit& unit, int local_rank);
  const ExchangeExtents* extents() override { return &extents_; }
  void tell(bool has_memory) override;
  std::optional<int> lacking() override;
  std::uint64_t rounds() const override { return 0; }

 private:
  const BoundUnit& unit_;
  int local_rank_;
  ExchangeExtents extents_;
};

/// For a set of several nodes, by the memory's cross group: one round of extents, where they may
/// differ, and one of who lacks memory. It always makes progress, as ExchangeRun does.
class AgreementOverNodes final : public ExchangeAgreement {
 public:
  std::uint64_t rounds() const override { return sizes_.must_be_exchanged() ? 2 : 1; }

  /// `first_sequence`: of the cross group's operations, one a round. Unit and context outlive it.
  AgreementOverNodes(const BoundUnit& unit, ExchangeContext& context, std::uint64_t first_sequence);
  ~AgreementOverNodes() override { sizes_.end_run(); }
  /// Throws Error(transport) for what cannot be.
  const ExchangeExtents* extents() override;
  void tell(bool has_memory) override;
  std::optional<int> lacking() override;

 private:
  int first_of(const std::byte* verdicts) const;

  const BoundUnit& unit_;
  ExchangeContext& context_;
  ExchangeSizes sizes_;
  std::optional<LeadersRound> extents_round_;
  LeadersRound memory_round_;
  std::optional<ExchangeExtents> extents_;
  bool asked_ = false;
};

}  // namespace hora::internal
