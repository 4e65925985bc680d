#include <fmt/format.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/control_block/tensor_id.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// Results from here on gain by non-temporal stores (docs/performance.md).
constexpr std::size_t kStreamedResult = std::size_t{8} << 20;
/// Bytes copied between two polls of the network.
constexpr std::size_t kOwnStep = std::size_t{1} << 20;

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
  std::byte* reserve(std::size_t bytes) {
    if (bytes > bytes_) {
      // First, so that both never exist at once.
      if (block_.data) memory_.release(std::exchange(block_, {}).data);
      bytes_ = 0;
      block_ = memory_.allocate(bytes);
      bytes_ = bytes;
    }
    return block_.data;
  }
  Location location() const { return block_.location; }

 private:
  NodeMemory& memory_;
  NodeMemory::MemoryBlock block_;
  std::size_t bytes_ = 0;
};

/// The parts that all exchanges of a set share.
struct ExchangeContext {
  ExchangeContext(const PipelineOptions& set_options, const ExchangeRounds& set_rounds,
                  NodeMemory& node_memory, CrossGroup* cross_group)
      : options(set_options),
        memory(node_memory),
        cross(cross_group),
        rounds(set_rounds),
        staging{GrowingBlock(memory), GrowingBlock(memory)},
        scratch{GrowingBlock(memory), GrowingBlock(memory)} {}

  GrowingBlock& staging_of(std::uint64_t round) { return staging[ExchangeRounds::slot(round)]; }
  /// The memory that a local rank has published for the round, as seen from here.
  const std::byte* published(int local_rank, std::uint64_t round, std::size_t bytes) const {
    return memory.address(local_rank, rounds.staging(local_rank, round), bytes);
  }
  const std::vector<int>& ranks_of(int node) const {
    return options.topology.ranks_of_node[static_cast<std::size_t>(node)];
  }
  /// The rank in the set of a local rank of this node.
  int rank_of(int member_of_node) const {
    return ranks_of(options.node)[static_cast<std::size_t>(member_of_node)];
  }
  bool is_one_node() const { return options.topology.nodes() == 1; }

  const PipelineOptions& options;
  NodeMemory& memory;
  CrossGroup* cross;
  ExchangeRounds rounds;
  std::uint64_t rounds_done = 0;  ///< of the exchanges that are complete
  // Two blocks each, for the slots of the rounds, kept from one exchange to the next.
  std::array<GrowingBlock, ExchangeRoundsCell::kSlots> staging;  ///< read by the node's ranks
  std::array<GrowingBlock, ExchangeRoundsCell::kSlots> scratch;  ///< private
};

/// A round (ExchangeRounds) in which each node's leader sends some bytes to all the others, and
/// every rank reads what has come.
class LeadersRound {
 public:
  /// `lengths`: of what each node brings, by node. The context outlives it.
  LeadersRound(ExchangeContext& context, std::uint64_t round, std::uint64_t sequence,
               std::vector<std::size_t> lengths)
      : context_(context),
        round_(round),
        sequence_(sequence),
        lengths_(std::move(lengths)),
        stride_(align_up(*std::ranges::max_element(lengths_))) {}

  bool leads() const { return context_.options.local_rank == 0; }
  /// The leader's, once: what this node brings.
  void bring(std::vector<std::byte> bytes) { own_ = std::move(bytes); }
  /// Polled: what all nodes have brought, that of node n at n * stride(); null: not there yet.
  const std::byte* poll() {
    if (leads() && !published_ && !publish()) return nullptr;
    if (!context_.rounds.published(round_, 1)) return nullptr;
    return context_.published(0, round_, bytes());
  }
  std::size_t stride() const { return stride_; }
  /// It has been read, on this rank.
  void leave() { context_.rounds.copied(round_); }

 private:
  std::size_t bytes() const { return lengths_.size() * stride_; }

  /// The leader's: true when what all nodes bring lies in its staging.
  bool publish() {
    if (!own_) return false;
    GrowingBlock& staging = context_.staging_of(round_);
    if (!crossed_) {
      if (!context_.rounds.may_fill(round_)) return false;
      std::byte* const all = staging.reserve(bytes());
      std::byte* const own = all + static_cast<std::size_t>(context_.options.node) * stride_;
      std::copy(own_->begin(), own_->end(), own);
      const std::vector<std::span<const std::byte>> sends(lengths_.size(), *own_);
      std::vector<std::span<std::byte>> receives;
      for (std::size_t node = 0; node < lengths_.size(); ++node) {
        receives.emplace_back(all + node * stride_, lengths_[node]);
      }
      crossed_ = context_.cross->exchange(sends, receives, sequence_);
    }
    if (!crossed_->poll()) return false;
    context_.rounds.publish(round_, staging.location());
    return published_ = true;
  }

  ExchangeContext& context_;
  std::uint64_t round_;
  std::uint64_t sequence_;
  std::vector<std::size_t> lengths_;
  std::size_t stride_;
  std::optional<std::vector<std::byte>> own_;  ///< of a leader, until its message has left
  std::optional<Completion> crossed_;
  bool published_ = false;
};

/// The extents of an exchange, which leaders send one another in a first round where they may
/// differ between nodes and are others than in its last run: as they are in memory, in the order of
/// local ranks.
class ExchangeSizes {
 public:
  /// References outlive it. Throws Error(transport) where a run repeats what this rank does not
  /// know.
  ExchangeSizes(const BoundUnit& unit, ExchangeContext& context, std::uint64_t sequence)
      : unit_(unit),
        context_(context),
        each_(extents_of_rank(unit.unit.kind, context.options.topology.size())),
        last_(unit.exchange.last ? unit.exchange.last : std::make_shared<LastExtents>()),
        rounds_(come_from_others() && !unit.exchange.repeats ? 1 : 0) {
    if (come_from_others() && unit.exchange.repeats && !last_->known()) {
      throw Error(ErrorCode::transport,
                  "exchange: it is to repeat extents that this rank does not know. Do all ranks "
                  "run the same build of hora?");
    }
    if (rounds_ == 0) return;
    std::vector<std::size_t> lengths;
    for (const auto& ranks : context.options.topology.ranks_of_node) {
      lengths.push_back(ranks.size() * each_bytes());
    }
    round_.emplace(context, context.rounds_done, sequence, std::move(lengths));
    if (!round_->leads()) return;
    std::vector<std::byte> own;
    for (const auto& rows : unit.exchange.rows) {
      const auto bytes = std::as_bytes(rows);
      own.insert(own.end(), bytes.begin(), bytes.end());
    }
    round_->bring(std::move(own));
  }
  ~ExchangeSizes() { last_->end_run(); }
  ExchangeSizes(const ExchangeSizes&) = delete;
  ExchangeSizes& operator=(const ExchangeSizes&) = delete;

  /// The rounds that it takes: 0 or 1.
  std::uint64_t rounds() const { return rounds_; }
  /// True when the extents are known.
  bool poll() {
    if (!round_) return true;
    const std::byte* const all = round_->poll();
    if (!all) return false;
    read(all);
    round_->leave();
    round_.reset();
    return true;
  }
  /// Extents of all ranks, once known. Valid as long as this.
  ExchangeExtents extents() const {
    ExchangeExtents result{unit_.unit.kind, unit_.exchange.row_bytes, {}};
    result.rows.resize(static_cast<std::size_t>(context_.options.topology.size()));
    for (int node = 0; node < context_.options.topology.nodes(); ++node) {
      std::size_t local = 0;
      const bool is_own = node == context_.options.node;
      for (const int rank : context_.ranks_of(node)) {
        // A reduce-scatter's whole is equal everywhere.
        result.rows[static_cast<std::size_t>(rank)] = !is_own && come_from_others()
                                                          ? last_->of(rank)
                                                          : unit_.exchange.rows[is_own ? local : 0];
        ++local;
      }
    }
    return result;
  }

 private:
  std::size_t each_bytes() const { return each_ * sizeof(std::int64_t); }
  bool come_from_others() const {
    return extents_may_differ(unit_.unit.kind) && !context_.is_one_node();
  }
  void read(const std::byte* in) {
    const auto all =
        last_->renew(each_, static_cast<std::size_t>(context_.options.topology.size()));
    for (int node = 0; node < context_.options.topology.nodes(); ++node) {
      const std::byte* from = in + static_cast<std::size_t>(node) * round_->stride();
      std::size_t local = 0;
      for (const int rank : context_.ranks_of(node)) {
        const std::byte* const extents = node == context_.options.node
                                             ? std::as_bytes(unit_.exchange.rows[local]).data()
                                             : from + local * each_bytes();
        std::memcpy(all.data() + static_cast<std::size_t>(rank) * each_, extents, each_bytes());
        ++local;
      }
    }
  }

  const BoundUnit& unit_;
  ExchangeContext& context_;
  std::size_t each_;  ///< extents of one rank
  std::shared_ptr<LastExtents> last_;
  std::uint64_t rounds_;
  std::optional<LeadersRound> round_;  ///< until they are known
};

bool comes_to(const Transfer& transfer, int local_rank) {
  return transfer.destination == local_rank || transfer.destination == Transfer::kAll;
}

/// Direct writes of a node's ranks into one another's results. Results that are as their ranks
/// expected have known places; if one is not, every rank publishes its own in one round of
/// ExchangeRounds. All ranks of the node decide that alike, from the same headers.
class ExchangePush {
 public:
  /// At least one rank pushes.
  static bool is_needed(const BoundUnit& unit) {
    return std::ranges::find(unit.exchange.pushes, true) != unit.exchange.pushes.end();
  }

  /// Where it is needed. `result`: this rank's, allocated. Unit and context outlive it.
  ExchangePush(const BoundUnit& unit, ExchangeContext& context, const ExchangeMap& map,
               std::span<std::byte> result)
      : unit_(unit),
        context_(context),
        own_rank_(context.options.local_rank),
        i_push_(unit.exchange.pushes[static_cast<std::size_t>(own_rank_)]),
        results_(static_cast<std::size_t>(unit.local_size)) {
    for (int r = 0; i_push_ && r < unit.local_size; ++r) {
      lengths_.push_back(map.result_bytes(context.rank_of(r)));
    }
    if (all_as_expected(map)) {
      for (int r = 0; r < unit.local_size; ++r) {
        find_result(r, unit.exchange.expected[static_cast<std::size_t>(r)]);
      }
      ready_ = true;
    } else {
      exchange_round_ = context.rounds_done;
      if (!result.empty()) own_result_ = context.memory.find(result.data(), result.size()).value();
    }
  }

  /// The number of rounds of ExchangeRounds that it takes: 0 or 1.
  std::uint64_t rounds() const { return exchange_round_ ? 1 : 0; }
  /// Does what can be done without blocking; true when push() may follow.
  bool poll() {
    if (ready_) return true;
    if (!told_) {
      if (!context_.rounds.may_fill(*exchange_round_)) return false;
      context_.rounds.publish(*exchange_round_, own_result_);
      told_ = true;
    }
    if (!context_.rounds.published(*exchange_round_, unit_.local_size)) return false;
    for (int r = 0; r < unit_.local_size; ++r) {
      find_result(r, context_.rounds.staging(r, *exchange_round_));
    }
    context_.rounds.copied(*exchange_round_);
    return ready_ = true;
  }
  bool is_ready() const { return ready_; }
  /// If this rank pushes: those of the transfers that go to others, from its input into their
  /// results.
  void push(const ByteLayout& transfers) const {
    if (!i_push_) return;
    const std::byte* const input = unit_.tensor(0, own_rank_);
    for (const Transfer& transfer : transfers) {
      if (transfer.source != own_rank_) continue;
      for (int r = 0; r < unit_.local_size; ++r) {
        if (r == own_rank_ || !comes_to(transfer, r)) continue;
        publish_copy(results_[static_cast<std::size_t>(r)] + transfer.destination_offset,
                     input + transfer.source_offset, transfer.range.bytes);
      }
    }
  }

 private:
  bool all_as_expected(const ExchangeMap& map) const {
    for (int r = 0; r < unit_.local_size; ++r) {
      if (unit_.exchange.expected[static_cast<std::size_t>(r)] == kNowhere) return false;
      if (!is_even(map.result_rows(context_.rank_of(r)))) return false;
    }
    return true;
  }
  void find_result(int local_rank, Location where) {
    if (!i_push_ || local_rank == own_rank_ || where == kNowhere) return;
    const auto r = static_cast<std::size_t>(local_rank);
    results_[r] = context_.memory.address(local_rank, where, lengths_[r]);
  }

  const BoundUnit& unit_;
  ExchangeContext& context_;
  int own_rank_;
  bool i_push_;
  Location own_result_ = kNowhere;
  std::vector<std::size_t> lengths_;  ///< of the results, by local rank; where this rank pushes
  std::optional<std::uint64_t> exchange_round_;
  bool told_ = false;
  bool ready_ = false;
  std::vector<std::byte*> results_;  ///< likewise; null: this rank's own, and empty ones
};

/// In the node every rank copies its part straight from its peers' inputs, or gets it from those
/// whose input it cannot read (ExchangePush). Between nodes in rounds: round 0 sends the sizes
/// (ExchangeSizes; not of a reduce-scatter, nor where the unit repeats), each other one a chunk of
/// every layout. Owner l gathers slice l of what its node gives to each other one, exchanges it
/// with its peers, and publishes what it got, or of a reduce-scatter the sum in node order: the
/// bits of allreduce. Every rank copies its part out of the owners' staging; what is one owner's
/// alone comes straight into its result.
///
/// Always makes progress: a round waits for earlier ones alone, its crossing for the peers' same
/// one, and all ranks compute the same rounds.
class ExchangeRun {
 public:
  /// `first_sequence`: of the cross group's operations, one a round. Unit and context outlive it.
  ExchangeRun(const BoundUnit& unit, ExchangeContext& context, std::uint64_t first_sequence)
      : unit_(unit),
        context_(context),
        local_rank_(context.options.local_rank),
        slices_(context.options.slices),
        first_sequence_(first_sequence),
        sizes_(unit, context, first_sequence),
        nodes_(context.options.topology.ranks_of_node.size()),
        own_node_(static_cast<std::size_t>(context.options.node)),
        rounds_(sizes_.rounds()),
        next_start_(rounds_),
        next_copy_(rounds_) {
    if (rounds_ == 0) prepare();
  }

  bool advance() {
    bool any = false;
    if (!prepared_) {
      if (!sizes_.poll()) return false;
      prepare();
      any = true;
    }
    if (context_.cross) {
      any |= start_rounds();
      any |= finish_crossings();
    }
    any |= copy_rounds();
    if (push_ && !push_->poll()) return any;
    return any || copy_own();
  }
  // Everything this rank has copied was published, by this rank as well: none of its crossings is
  // open.
  bool complete() const {
    return prepared_ && next_copy_ == rounds_ && own_done_ == length_of(own_) &&
           (!push_ || push_->is_ready());
  }
  /// The number of sequence numbers, and of rounds of ExchangeRounds, that it took; once complete.
  std::uint64_t rounds() const { return rounds_; }

 private:
  struct Crossing {
    std::uint64_t round;
    Completion work;
    std::vector<const std::byte*> summands;  ///< of a reduce-scatter: this rank's slice, by node
  };

  bool sums() const { return unit_.unit.kind == OperationKind::reduce_scatter; }
  std::uint64_t exchange_round_of(std::uint64_t round) const {
    return context_.rounds_done + round;
  }
  GrowingBlock& staging_of(std::uint64_t round) {
    return context_.staging_of(exchange_round_of(round));
  }

  void prepare() {
    const ExchangeMap map(context_.options.topology, sizes_.extents());
    prepared_ = true;
    prepare(map);
  }
  void prepare(const ExchangeMap& map) {
    if (auto refusal = map.refusal(context_.options.job_memory)) {
      unit_.exchange.result->refuse(std::move(*refusal));
      return;
    }
    const int rank = context_.rank_of(local_rank_);
    const std::size_t bytes = map.result_bytes(rank);
    result_ = {unit_.exchange.result->allocate(map.result_rows(rank), bytes), bytes};
    for (int node = 0; node < context_.options.topology.nodes(); ++node) {
      outgoing_.push_back(map.layout(context_.options.node, node));
      incoming_.push_back(map.layout(node, context_.options.node));
    }
    // A reduce-scatter's own part is summed with that of the other nodes.
    if (!sums() || nodes_ == 1) {
      own_ = moved_by(local_rank_, unit_.exchange.pushes, incoming_[own_node_]);
    }
    if (ExchangePush::is_needed(unit_)) {
      push_.emplace(unit_, context_, map, result_);
      rounds_ = next_copy_ = push_->rounds();
    }
    if (const std::size_t longest = map.longest_stream(); longest > 0) {
      const std::size_t round = round_bytes(context_.options.chunk_bytes, static_cast<int>(nodes_));
      stream_chunk_ = std::min(round, align_up(longest));
      stride_ = slice_range({0, stream_chunk_}, 0, slices_).bytes;
      rounds_ += (longest + stream_chunk_ - 1) / stream_chunk_;
    }
  }

  bool start_rounds() {
    bool any = false;
    for (; next_start_ < rounds_ && context_.rounds.may_fill(exchange_round_of(next_start_));
         ++next_start_) {
      Crossing& crossing = crossings_.emplace_back();
      crossing.round = next_start_;
      start_data(crossing);
      any = true;
    }
    return any;
  }

  /// Owner's slice of the chunk that travels in `round`.
  Range slice(const ByteLayout& layout, std::uint64_t round, int owner) const {
    const std::size_t length = length_of(layout);
    const auto chunk = static_cast<std::size_t>(round - sizes_.rounds());
    const std::size_t begin = std::min(chunk * stream_chunk_, length);
    return slice_range({begin, std::min(stream_chunk_, length - begin)}, owner, slices_);
  }

  /// The transfer of every local rank's input, summed.
  void sum_transfer(const Transfer& transfer, double scale, std::byte* out) const {
    std::array<const std::byte*, kMaxLocalSize> inputs;
    const auto count = static_cast<std::size_t>(unit_.local_size);
    for (int r = 0; r < unit_.local_size; ++r) {
      inputs[static_cast<std::size_t>(r)] = unit_.tensor(0, r) + transfer.source_offset;
    }
    const DataType type = unit_.unit.type;
    reduce(type, unit_.unit.op, {inputs.data(), count}, {&out, 1},
           transfer.range.bytes / size_of(type), {.pre = unit_.unit.prescale, .post = scale});
  }
  const std::byte* source_of(const Transfer& transfer) const {
    return unit_.tensor(0, transfer.source) + transfer.source_offset;
  }

  /// A range of what this node gives: where it lies, or gathered into `scratch`, one byte after the
  /// other. Sums are not scaled.
  std::span<const std::byte> outgoing(const ByteLayout& layout, Range range,
                                      std::byte* scratch) const {
    const ByteLayout transfers = cut(layout, range);
    const bool sum_is_input = unit_.local_size == 1 && unit_.unit.prescale == 1.0;
    if (transfers.size() == 1 && (transfers[0].source != Transfer::kAll || sum_is_input)) {
      const int source = std::max(transfers[0].source, 0);
      return {unit_.tensor(0, source) + transfers[0].source_offset, range.bytes};
    }
    for (const Transfer& transfer : transfers) {
      std::byte* const out = scratch + transfer.range.begin;
      if (transfer.source == Transfer::kAll) {
        sum_transfer(transfer, 1.0, out);
      } else {
        std::memcpy(out, source_of(transfer), transfer.range.bytes);
      }
    }
    return {scratch, range.bytes};
  }

  /// Where these bytes belong in this rank's result, if they come to it alone and lie there one
  /// after the other.
  std::byte* landing(const ByteLayout& transfers) const {
    if (transfers.empty()) return nullptr;
    std::size_t end = transfers.front().destination_offset;
    for (const Transfer& transfer : transfers) {
      const bool is_own = transfer.destination == local_rank_ ||
                          (transfer.destination == Transfer::kAll && unit_.local_size == 1);
      if (!is_own || transfer.destination_offset != end) return nullptr;
      end += transfer.range.bytes;
    }
    return result_.data() + transfers.front().destination_offset;
  }

  void start_data(Crossing& crossing) {
    const std::uint64_t round = crossing.round;
    const bool is_gather = unit_.unit.kind == OperationKind::allgather;
    std::byte* const scratch =
        context_.scratch[ExchangeRounds::slot(exchange_round_of(round))].reserve((sums() ? 2 : 1) *
                                                                                 nodes_ * stride_);
    std::byte* const staging = staging_of(round).reserve((sums() ? 1 : nodes_) * stride_);
    std::byte* const incoming = sums() ? scratch + nodes_ * stride_ : staging;

    std::vector<std::span<const std::byte>> sends(nodes_);
    std::vector<std::span<std::byte>> receives(nodes_);
    std::span<const std::byte> to_all;
    for (std::size_t node = 0; node < nodes_; ++node) {
      const Range in = slice(incoming_[node], round, local_rank_);
      std::byte* const target = sums() ? nullptr : landing(cut(incoming_[node], in));
      receives[node] = {target ? target : incoming + node * stride_, in.bytes};
      if (node == own_node_) continue;
      const Range out = slice(outgoing_[node], round, local_rank_);
      sends[node] = is_gather && !to_all.empty()
                        ? to_all
                        : outgoing(outgoing_[node], out, scratch + node * stride_);
      if (is_gather) to_all = sends[node];
    }
    crossing.work = context_.cross->exchange(sends, receives, first_sequence_ + round);
    if (!sums()) return;
    for (const auto& part : receives) crossing.summands.push_back(part.data());
    const Range own = slice(incoming_[own_node_], round, local_rank_);
    crossing.summands[own_node_] =
        outgoing(incoming_[own_node_], own, receives[own_node_].data()).data();
  }

  bool finish_crossings() {
    bool any = false;
    while (!crossings_.empty() && crossings_.front().work.poll()) {
      const Crossing& crossing = crossings_.front();
      if (!crossing.summands.empty()) sum(crossing);
      context_.rounds.publish(exchange_round_of(crossing.round),
                              staging_of(crossing.round).location());
      crossings_.pop_front();
      any = true;
    }
    return any;
  }
  void sum(const Crossing& crossing) {
    const Range range = slice(incoming_[own_node_], crossing.round, local_rank_);
    std::byte* out = landing(cut(incoming_[own_node_], range));
    if (!out) out = staging_of(crossing.round).reserve(range.bytes);
    const DataType type = unit_.unit.type;
    reduce(type, unit_.unit.op, crossing.summands, {&out, 1}, range.bytes / size_of(type),
           {.post = unit_.scale});
  }

  bool copy_rounds() {
    bool any = false;
    for (;
         next_copy_ < rounds_ && context_.rounds.published(exchange_round_of(next_copy_), slices_);
         ++next_copy_) {
      copy_data(next_copy_);
      context_.rounds.copied(exchange_round_of(next_copy_));
      any = true;
    }
    return any;
  }
  void copy_data(std::uint64_t round) {
    for (int owner = 0; owner < slices_; ++owner) {
      const std::byte* const staging =
          context_.published(owner, exchange_round_of(round), (sums() ? 1 : nodes_) * stride_);
      for (std::size_t node = 0; node < nodes_; ++node) {
        // All nodes' streams of a reduce-scatter to this one are alike, and staging holds their
        // sum.
        if ((node == own_node_) != sums()) continue;
        const ByteLayout transfers = cut(incoming_[node], slice(incoming_[node], round, owner));
        if (owner == local_rank_ && landing(transfers)) continue;
        const std::byte* const in = staging + (sums() ? 0 : node * stride_);
        for (const Transfer& transfer : transfers) {
          if (comes_to(transfer, local_rank_)) copy_in(transfer, in + transfer.range.begin);
        }
      }
    }
  }

  /// A step, so that the network is polled often; in one node all at once. Straight from the node's
  /// inputs into this rank's result, in local rank order; sums are scaled.
  bool copy_own() {
    const std::size_t left = length_of(own_) - own_done_;
    if (left == 0) return false;
    const std::size_t step = nodes_ == 1 ? left : std::min(left, kOwnStep);
    const ByteLayout transfers = cut(own_, {own_done_, step});
    for (const Transfer& transfer : transfers) {
      if (!comes_to(transfer, local_rank_)) continue;
      if (transfer.source == Transfer::kAll) {
        sum_transfer(transfer, unit_.scale, result_.data() + transfer.destination_offset);
      } else {
        copy_in(transfer, source_of(transfer));
      }
    }
    if (push_) push_->push(transfers);
    own_done_ += step;
    return true;
  }
  /// Into the result, past the caches where it is too long to be read from them afterwards.
  void copy_in(const Transfer& transfer, const std::byte* in) const {
    std::byte* const out = result_.data() + transfer.destination_offset;
    if (out == in) return;
    if (result_.size() >= kStreamedResult) {
      stream_copy(out, in, transfer.range.bytes);
    } else {
      std::memcpy(out, in, transfer.range.bytes);
    }
  }

  const BoundUnit& unit_;
  ExchangeContext& context_;
  int local_rank_;
  int slices_;
  std::uint64_t first_sequence_;
  ExchangeSizes sizes_;
  std::size_t nodes_;
  std::size_t own_node_;
  std::uint64_t rounds_;  ///< known so far

  // Once the sizes are known.
  bool prepared_ = false;
  std::span<std::byte> result_;
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

using Verdict = std::int32_t;  ///< a rank's place in the set, or kNoRank

/// In one node its ranks' headers say all. Between nodes, by the memory's cross group, one round of
/// extents, where they may differ, and one of who lacks memory; it always makes progress, as
/// ExchangeRun does.
class Agreement final : public ExchangeAgreement {
 public:
  /// `first_sequence`: of the cross group's operations, one a round. Unit and context outlive it.
  Agreement(const BoundUnit& unit, ExchangeContext& context, std::uint64_t first_sequence)
      : unit_(unit), context_(context), sizes_(unit, context, first_sequence) {
    if (context.is_one_node()) return;
    memory_round_.emplace(
        context, context.rounds_done + sizes_.rounds(), first_sequence + sizes_.rounds(),
        std::vector<std::size_t>(context.options.topology.ranks_of_node.size(), sizeof(Verdict)));
  }

  /// Throws Error(transport) for what cannot be.
  const ExchangeExtents* extents() override {
    if (!extents_ && sizes_.poll()) extents_ = sizes_.extents();
    return extents_ ? &*extents_ : nullptr;
  }
  void tell(bool has_memory) override {
    unit_.exchange.room[static_cast<std::size_t>(context_.options.local_rank)].tell(
        has_memory ? ResultRoom::Answer::enough : ResultRoom::Answer::lacking);
  }
  std::optional<int> lacking() override {
    if (!memory_round_) return first_of_node();
    if (memory_round_->leads() && !asked_) {
      if (const auto first = first_of_node()) {
        const Verdict verdict = *first == kNoRank ? kNoRank : context_.rank_of(*first);
        const auto bytes = std::as_bytes(std::span(&verdict, 1));
        memory_round_->bring({bytes.begin(), bytes.end()});
        asked_ = true;
      }
    }
    const std::byte* const all = memory_round_->poll();
    if (!all) return std::nullopt;
    const int first = first_of(all);
    memory_round_->leave();
    return first;
  }
  std::uint64_t rounds() const override { return sizes_.rounds() + (memory_round_ ? 1 : 0); }

 private:
  /// Once all of the node have told: the first that lacks memory, by its place there, or kNoRank.
  std::optional<int> first_of_node() const {
    int first = kNoRank;
    for (std::size_t r = unit_.exchange.room.size(); r-- > 0;) {
      const ResultRoom::Answer answer = unit_.exchange.room[r].answer();
      if (answer == ResultRoom::Answer::none_yet) return std::nullopt;
      if (answer == ResultRoom::Answer::lacking) first = static_cast<int>(r);
    }
    return first;
  }
  /// The first of the verdicts, in places that are numbered as the set's ranks.
  int first_of(const std::byte* verdicts) const {
    int first = kNoRank;
    for (int node = 0; node < context_.options.topology.nodes(); ++node) {
      Verdict verdict = kNoRank;
      std::memcpy(&verdict, verdicts + static_cast<std::size_t>(node) * memory_round_->stride(),
                  sizeof verdict);
      if (verdict == kNoRank) continue;
      if (context_.options.topology.node_of(verdict) != node) {
        throw Error(
            ErrorCode::transport,
            fmt::format("exchange: node {} says that rank {} of the set lacks memory, which is "
                        "none of its ranks. Do all ranks run the same build of hora?",
                        node, verdict));
      }
      if (first == kNoRank || verdict < first) first = verdict;
    }
    return first;
  }

  const BoundUnit& unit_;
  ExchangeContext& context_;
  ExchangeSizes sizes_;
  std::optional<LeadersRound> memory_round_;  ///< between several nodes
  std::optional<ExchangeExtents> extents_;
  bool asked_ = false;
};

}  // namespace

struct Exchanges::State {
  ExchangeContext context;
  std::optional<ExchangeRun> run = {};
  std::optional<Agreement> agreement = {};
};

Exchanges::Exchanges(const PipelineOptions& options, NodeControlBlock& control_block,
                     NodeMemory& memory, CrossGroup* cross)
    : state_(new State{{options, control_block.exchange_rounds(), memory, cross}}) {}

Exchanges::~Exchanges() = default;

void Exchanges::start(const BoundUnit& unit, std::uint64_t first_sequence) {
  state_->run.emplace(unit, state_->context, first_sequence);
}

bool Exchanges::advance() {
  return state_->run->advance();
}

bool Exchanges::complete() const {
  return state_->run->complete();
}

ExchangeAgreement& Exchanges::agree(const BoundUnit& unit, std::uint64_t first_sequence) {
  return state_->agreement.emplace(unit, state_->context, first_sequence);
}

std::uint64_t Exchanges::end() {
  const std::uint64_t rounds = state_->run ? state_->run->rounds() : state_->agreement->rounds();
  state_->context.rounds_done += rounds;
  state_->run.reset();
  state_->agreement.reset();
  return rounds;
}

}  // namespace hora::internal
