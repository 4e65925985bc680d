#include "ops/hierarchy/exchange_run.h"

#include <fmt/format.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "core/control_block/tensor_id.h"
#include "ops/local/kernels.h"

namespace hora::internal {

ExchangeSizes::ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node)
    : unit_(unit),
      topology_(topology),
      node_(node),
      each_(extents_of_rank(unit.unit.kind, topology.size())),
      last_(unit.exchange.last ? unit.exchange.last : std::make_shared<LastExtents>()) {
  if (come_from_others() && unit.exchange.repeats && !last_->known()) {
    throw Error(ErrorCode::transport,
                "exchange: it is to repeat extents that this rank does not know. Do all ranks run "
                "the same build of hora?");
  }
}

const std::vector<int>& ExchangeSizes::ranks_of(int node) const {
  return topology_.ranks_of_node[static_cast<std::size_t>(node)];
}

bool ExchangeSizes::come_from_others() const {
  return extents_may_differ(unit_.unit.kind) && topology_.nodes() > 1;
}

std::size_t ExchangeSizes::bytes_of(int node) const {
  return ranks_of(node).size() * each_ * sizeof(std::int64_t);
}

std::size_t ExchangeSizes::stride() const {
  std::size_t longest = 0;
  for (int node = 0; node < topology_.nodes(); ++node) longest = std::max(longest, bytes_of(node));
  return align_up(longest);
}

void ExchangeSizes::write(std::byte* out) const {
  for (const auto& own : unit_.exchange.rows) {
    std::memcpy(out, own.data(), own.size_bytes());
    out += own.size_bytes();
  }
}

void ExchangeSizes::read(const std::byte* in) {
  const auto all = last_->renew(each_, static_cast<std::size_t>(topology_.size()));
  const std::size_t each_bytes = each_ * sizeof(std::int64_t);
  for (int node = 0; node < topology_.nodes(); ++node) {
    const std::byte* from = in + static_cast<std::size_t>(node) * stride();
    for (std::size_t local = 0; local < ranks_of(node).size(); ++local) {
      const auto place = static_cast<std::size_t>(ranks_of(node)[local]);
      const std::byte* const extents =
          node == node_ ? std::as_bytes(unit_.exchange.rows[local]).data() : from;
      std::memcpy(all.data() + place * each_, extents, each_bytes);
      from += each_bytes;
    }
  }
}

ExchangeExtents ExchangeSizes::extents() const {
  ExchangeExtents result{unit_.unit.kind, unit_.exchange.row_bytes, {}};
  result.rows.resize(static_cast<std::size_t>(topology_.size()));
  for (int node = 0; node < topology_.nodes(); ++node) {
    std::size_t local = 0;
    for (const int rank : ranks_of(node)) {
      auto& rows = result.rows[static_cast<std::size_t>(rank)];
      if (node != node_ && come_from_others()) {
        rows = last_->of(rank);
      } else {
        // A reduce-scatter's whole is equal everywhere.
        rows = unit_.exchange.rows[node == node_ ? local : 0];
      }
      ++local;
    }
  }
  return result;
}

std::byte* GrowingBlock::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    // First, so that both never exist at once.
    if (block_.data) memory_.release(std::exchange(block_, {}).data);
    bytes_ = 0;
    block_ = memory_.allocate(bytes);
    bytes_ = bytes;
  }
  return block_.data;
}

namespace {

/// Results from here on gain by non-temporal stores (docs/performance.md).
constexpr std::size_t kStreamedResult = std::size_t{8} << 20;

/// The transfer of every local rank's input, summed.
void sum_transfer(const BoundUnit& unit, const Transfer& transfer, double scale, std::byte* out) {
  std::array<const std::byte*, kMaxLocalSize> inputs;
  const auto count = static_cast<std::size_t>(unit.local_size);
  for (int r = 0; r < unit.local_size; ++r) {
    inputs[static_cast<std::size_t>(r)] = unit.tensor(0, r) + transfer.source_offset;
  }
  const DataType type = unit.unit.type;
  reduce(type, unit.unit.op, {inputs.data(), count}, {&out, 1},
         transfer.range.bytes / size_of(type), {.pre = unit.unit.prescale, .post = scale});
}

const std::byte* source_of(const BoundUnit& unit, const Transfer& transfer) {
  return unit.tensor(0, transfer.source) + transfer.source_offset;
}

bool comes_to(const Transfer& transfer, int local_rank) {
  return transfer.destination == local_rank || transfer.destination == Transfer::kAll;
}

/// From the node's inputs to `out`, where the layout's bytes lie one after the other. Sums are not
/// scaled.
void gather(const BoundUnit& unit, const ByteLayout& layout, std::byte* out) {
  for (const Transfer& transfer : layout) {
    if (transfer.source == Transfer::kAll) {
      sum_transfer(unit, transfer, 1.0, out + transfer.range.begin);
    } else {
      std::memcpy(out + transfer.range.begin, source_of(unit, transfer), transfer.range.bytes);
    }
  }
}

/// From `in`, where the layout's bytes lie one after the other, those that come to `local_rank`
/// into its result.
void scatter(const ByteLayout& layout, int local_rank, const std::byte* in,
             const ExchangeTarget& result) {
  for (const Transfer& transfer : layout) {
    if (!comes_to(transfer, local_rank)) continue;
    result.copy(transfer.destination_offset, in + transfer.range.begin, transfer.range.bytes);
  }
}

/// Straight from the node's inputs into this rank's result what comes to `local_rank`, this one, in
/// local rank order; sums are scaled.
void copy_to_result(const BoundUnit& unit, const ByteLayout& layout, int local_rank,
                    const ExchangeTarget& result) {
  for (const Transfer& transfer : layout) {
    if (!comes_to(transfer, local_rank)) continue;
    if (transfer.source == Transfer::kAll) {
      sum_transfer(unit, transfer, unit.scale, result.at(transfer.destination_offset));
    } else {
      result.copy(transfer.destination_offset, source_of(unit, transfer), transfer.range.bytes);
    }
  }
}

/// Bytes copied between two polls of the network.
constexpr std::size_t kOwnStep = std::size_t{1} << 20;

using Verdict = std::int32_t;  ///< a rank's place in the set, or kNoRank

bool has_told(const ResultRoom& room) {
  return room.answer() != ResultRoom::Answer::none_yet;
}
bool lacks(const ResultRoom& room) {
  return room.answer() == ResultRoom::Answer::lacking;
}
/// Place in the node, or kNoRank.
int first_lacking(const BoundUnit& unit) {
  const auto& room = unit.exchange.room;
  const auto first = std::ranges::find_if(room, lacks);
  return first == room.end() ? ExchangeAgreement::kNoRank : static_cast<int>(first - room.begin());
}
void tell_in_node(const BoundUnit& unit, int local_rank, bool has_memory) {
  unit.exchange.room[static_cast<std::size_t>(local_rank)].tell(
      has_memory ? ResultRoom::Answer::enough : ResultRoom::Answer::lacking);
}

std::vector<std::size_t> lengths_of_extents(const ExchangeSizes& sizes, int nodes) {
  std::vector<std::size_t> lengths;
  for (int node = 0; node < nodes; ++node) lengths.push_back(sizes.bytes_of(node));
  return lengths;
}

}  // namespace

void ExchangeTarget::copy(std::size_t offset, const std::byte* in, std::size_t bytes) const {
  if (data_ + offset == in) return;
  if (bytes_ >= kStreamedResult) {
    stream_copy(data_ + offset, in, bytes);
  } else {
    std::memcpy(data_ + offset, in, bytes);
  }
}

ExchangePush::ExchangePush(const BoundUnit& unit, ExchangeContext& context, const ExchangeMap& map,
                           const std::byte* result, std::size_t bytes)
    : unit_(unit), context_(context), results_(static_cast<std::size_t>(unit.local_size)) {
  for (int r = 0; i_push() && r < unit.local_size; ++r) {
    lengths_.push_back(map.result_bytes(context.rank_of(r)));
  }
  if (all_as_expected(map)) {
    for (int r = 0; r < unit.local_size; ++r) {
      find_result(r, unit.exchange.expected[static_cast<std::size_t>(r)]);
    }
    ready_ = true;
  } else {
    exchange_round_ = context.rounds_done;
    if (bytes > 0) own_result_ = context.memory.location_of(result, bytes);
  }
}

bool ExchangePush::is_needed(const BoundUnit& unit) {
  const auto& pushes = unit.exchange.pushes;
  return std::find(pushes.begin(), pushes.end(), true) != pushes.end();
}

bool ExchangePush::all_as_expected(const ExchangeMap& map) const {
  for (int r = 0; r < unit_.local_size; ++r) {
    if (unit_.exchange.expected[static_cast<std::size_t>(r)] == kNowhere) return false;
    if (!is_even(map.result_rows(context_.rank_of(r)))) return false;
  }
  return true;
}

bool ExchangePush::i_push() const {
  return unit_.exchange.pushes[static_cast<std::size_t>(context_.local_rank)];
}

void ExchangePush::find_result(int local_rank, Location where) {
  if (!i_push() || local_rank == context_.local_rank || where == kNowhere) return;
  const auto r = static_cast<std::size_t>(local_rank);
  results_[r] = context_.memory.at(local_rank, where, lengths_[r]);
}

bool ExchangePush::poll() {
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

void ExchangePush::push(const ByteLayout& transfers) const {
  if (!i_push()) return;
  const std::byte* const input = unit_.tensor(0, context_.local_rank);
  for (const Transfer& transfer : transfers) {
    if (transfer.source != context_.local_rank) continue;
    for (int r = 0; r < unit_.local_size; ++r) {
      if (r == context_.local_rank || !comes_to(transfer, r)) continue;
      publish_copy(results_[static_cast<std::size_t>(r)] + transfer.destination_offset,
                   input + transfer.source_offset, transfer.range.bytes);
    }
  }
}

ExchangeRun::ExchangeRun(const BoundUnit& unit, ExchangeContext& context,
                         std::uint64_t first_sequence)
    : unit_(unit),
      context_(context),
      first_sequence_(first_sequence),
      sizes_(unit, context.topology, context.node),
      nodes_(context.topology.ranks_of_node.size()),
      rounds_(sizes_.must_be_exchanged() ? 1 : 0),
      next_start_(rounds_),
      next_copy_(rounds_) {
  if (rounds_ == 0) {
    prepare();
  } else {
    sizes_round_.emplace(context, context.rounds_done, first_sequence, sizes_);
  }
}

void ExchangeRun::prepare() {
  const ExchangeMap map(context_.topology, sizes_.extents());
  prepared_ = true;
  prepare(map);
  sizes_.end_run();
}

void ExchangeRun::prepare(const ExchangeMap& map) {
  if (auto refusal = map.refusal(context_.job_memory)) {
    unit_.exchange.result->refuse(std::move(*refusal));
    return;
  }
  const int nodes = context_.topology.nodes();
  const int rank = context_.rank_of(context_.local_rank);
  const std::size_t bytes = map.result_bytes(rank);
  result_ = {unit_.exchange.result->allocate(map.result_rows(rank), bytes), bytes};
  for (int node = 0; node < nodes; ++node) {
    outgoing_.push_back(map.layout(context_.node, node));
    incoming_.push_back(map.layout(node, context_.node));
  }
  // A reduce-scatter's own part is summed with that of the other nodes.
  if (!sums() || nodes == 1) {
    own_ = moved_by(context_.local_rank, unit_.exchange.pushes,
                    incoming_[static_cast<std::size_t>(context_.node)]);
  }
  if (ExchangePush::is_needed(unit_)) {
    push_.emplace(unit_, context_, map, result_.at(0), bytes);
    rounds_ = next_copy_ = push_->rounds();
  }
  if (const std::size_t longest = map.longest_stream(); longest > 0) {
    stream_chunk_ = std::min(round_bytes(context_.chunk_bytes, nodes), align_up(longest));
    stride_ = slice_range({0, stream_chunk_}, 0, context_.slices).bytes;
    rounds_ += (longest + stream_chunk_ - 1) / stream_chunk_;
  }
}

// Everything this rank has copied was published, by this rank as well: none of its crossings is
// open.
bool ExchangeRun::complete() const {
  return prepared_ && next_copy_ == rounds_ && own_done_ == length_of(own_) &&
         (!push_ || push_->is_ready());
}

bool ExchangeRun::advance() {
  bool any = false;
  if (sizes_round_) {
    const std::byte* const all = sizes_round_->poll();
    if (!all) return false;
    sizes_.read(all);
    sizes_round_->leave();
    sizes_round_.reset();
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

bool ExchangeRun::start_rounds() {
  bool any = false;
  for (; next_start_ < rounds_ && context_.rounds.may_fill(exchange_round_of(next_start_));
       ++next_start_) {
    Crossing& crossing = crossings_.emplace_back();
    crossing.round = next_start_;
    crossing.work = start_data(next_start_, crossing.summands);
    any = true;
  }
  return any;
}

Range ExchangeRun::slice(const ByteLayout& layout, std::uint64_t round, int owner) const {
  const std::size_t length = length_of(layout);
  const std::size_t chunk = static_cast<std::size_t>(round - (sizes_.must_be_exchanged() ? 1 : 0));
  const std::size_t begin = std::min(chunk * stream_chunk_, length);
  return slice_range({begin, std::min(stream_chunk_, length - begin)}, owner, context_.slices);
}

/// A range of what this node gives: where it lies, or gathered into `scratch`.
std::span<const std::byte> ExchangeRun::outgoing(const ByteLayout& layout, Range range,
                                                 std::byte* scratch) const {
  const ByteLayout transfers = cut(layout, range);
  const bool sum_is_input = unit_.local_size == 1 && unit_.unit.prescale == 1.0;
  if (transfers.size() == 1 && (transfers[0].source != Transfer::kAll || sum_is_input)) {
    const int source = std::max(transfers[0].source, 0);
    return {unit_.tensor(0, source) + transfers[0].source_offset, range.bytes};
  }
  gather(unit_, transfers, scratch);
  return {scratch, range.bytes};
}

/// Where these bytes belong in this rank's result, if they come to it alone and lie there one after
/// the other.
std::byte* ExchangeRun::landing(const ByteLayout& transfers) const {
  if (transfers.empty()) return nullptr;
  std::size_t end = transfers.front().destination_offset;
  for (const Transfer& transfer : transfers) {
    const bool is_own = transfer.destination == context_.local_rank ||
                        (transfer.destination == Transfer::kAll && unit_.local_size == 1);
    if (!is_own || transfer.destination_offset != end) return nullptr;
    end += transfer.range.bytes;
  }
  return result_.at(transfers.front().destination_offset);
}

Completion ExchangeRun::start_data(std::uint64_t round, std::vector<const std::byte*>& summands) {
  const std::uint64_t exchange_round = exchange_round_of(round);
  const auto own_node = static_cast<std::size_t>(context_.node);
  const bool is_gather = unit_.unit.kind == OperationKind::allgather;
  std::byte* const scratch =
      context_.memory.scratch(exchange_round).reserve((sums() ? 2 : 1) * nodes_ * stride_);
  std::byte* const staging =
      context_.memory.staging(exchange_round).reserve((sums() ? 1 : nodes_) * stride_);
  std::byte* const incoming = sums() ? scratch + nodes_ * stride_ : staging;

  std::vector<std::span<const std::byte>> sends(nodes_);
  std::vector<std::span<std::byte>> receives(nodes_);
  std::span<const std::byte> to_all;
  for (std::size_t node = 0; node < nodes_; ++node) {
    const Range in = slice(incoming_[node], round, context_.local_rank);
    std::byte* const target = sums() ? nullptr : landing(cut(incoming_[node], in));
    receives[node] = {target ? target : incoming + node * stride_, in.bytes};
    if (node == own_node) continue;
    const Range out = slice(outgoing_[node], round, context_.local_rank);
    sends[node] = is_gather && !to_all.empty()
                      ? to_all
                      : outgoing(outgoing_[node], out, scratch + node * stride_);
    if (is_gather) to_all = sends[node];
  }
  Completion work = context_.cross->exchange(sends, receives, first_sequence_ + round);
  if (sums()) {
    for (const auto& part : receives) summands.push_back(part.data());
    const Range own = slice(incoming_[own_node], round, context_.local_rank);
    summands[own_node] = outgoing(incoming_[own_node], own, receives[own_node].data()).data();
  }
  return work;
}

bool ExchangeRun::finish_crossings() {
  bool any = false;
  while (!crossings_.empty() && crossings_.front().work.poll()) {
    const Crossing& crossing = crossings_.front();
    const std::uint64_t exchange_round = exchange_round_of(crossing.round);
    if (!crossing.summands.empty()) sum(crossing);
    context_.rounds.publish(exchange_round, context_.memory.staging(exchange_round).location());
    crossings_.pop_front();
    any = true;
  }
  return any;
}

void ExchangeRun::sum(const Crossing& crossing) {
  const auto own_node = static_cast<std::size_t>(context_.node);
  const Range range = slice(incoming_[own_node], crossing.round, context_.local_rank);
  std::byte* out = landing(cut(incoming_[own_node], range));
  if (!out) out = context_.memory.staging(exchange_round_of(crossing.round)).reserve(range.bytes);
  const DataType type = unit_.unit.type;
  reduce(type, unit_.unit.op, crossing.summands, {&out, 1}, range.bytes / size_of(type),
         {.post = unit_.scale});
}

bool ExchangeRun::copy_rounds() {
  bool any = false;
  for (; next_copy_ < rounds_ &&
         context_.rounds.published(exchange_round_of(next_copy_), context_.slices);
       ++next_copy_) {
    copy_data(next_copy_);
    context_.rounds.copied(exchange_round_of(next_copy_));
    any = true;
  }
  return any;
}

void ExchangeRun::copy_data(std::uint64_t round) {
  for (int owner = 0; owner < context_.slices; ++owner) {
    const std::byte* const staging =
        context_.memory.at(owner, context_.rounds.staging(owner, exchange_round_of(round)),
                           (sums() ? 1 : nodes_) * stride_);
    for (std::size_t node = 0; node < nodes_; ++node) {
      // All nodes' streams of a reduce-scatter to this one are alike, and staging holds their sum.
      const bool is_own = node == static_cast<std::size_t>(context_.node);
      if (is_own != sums()) continue;
      const ByteLayout transfers = cut(incoming_[node], slice(incoming_[node], round, owner));
      if (owner == context_.local_rank && landing(transfers)) continue;
      scatter(transfers, context_.local_rank, staging + (sums() ? 0 : node * stride_), result_);
    }
  }
}

/// A step, so that the network is polled often; in one node all at once.
bool ExchangeRun::copy_own() {
  const std::size_t left = length_of(own_) - own_done_;
  if (left == 0) return false;
  const std::size_t step = nodes_ == 1 ? left : std::min(left, kOwnStep);
  const ByteLayout transfers = cut(own_, {own_done_, step});
  copy_to_result(unit_, transfers, context_.local_rank, result_);
  if (push_) push_->push(transfers);
  own_done_ += step;
  return true;
}

AgreementInNode::AgreementInNode(const BoundUnit& unit, int local_rank)
    : unit_(unit),
      local_rank_(local_rank),
      extents_{unit.unit.kind, unit.exchange.row_bytes, unit.exchange.rows} {}

void AgreementInNode::tell(bool has_memory) {
  tell_in_node(unit_, local_rank_, has_memory);
}

std::optional<int> AgreementInNode::lacking() {
  if (!std::ranges::all_of(unit_.exchange.room, has_told)) return std::nullopt;
  return first_lacking(unit_);
}

LeadersRound::LeadersRound(ExchangeContext& context, std::uint64_t round, std::uint64_t sequence,
                           std::vector<std::size_t> lengths)
    : context_(context),
      round_(round),
      sequence_(sequence),
      lengths_(std::move(lengths)),
      stride_(align_up(*std::ranges::max_element(lengths_))) {}

LeadersRound::LeadersRound(ExchangeContext& context, std::uint64_t round, std::uint64_t sequence,
                           const ExchangeSizes& sizes)
    : LeadersRound(context, round, sequence, lengths_of_extents(sizes, context.topology.nodes())) {
  if (!leads()) return;
  own_.resize(sizes.bytes_of(context.node));
  sizes.write(own_.data());
  brought_ = true;
}

void LeadersRound::bring(std::span<const std::byte> bytes) {
  own_.assign(bytes.begin(), bytes.end());
  brought_ = true;
}

const std::byte* LeadersRound::poll() {
  if (leads() && !published_ && !publish()) return nullptr;
  if (!context_.rounds.published(round_, 1)) return nullptr;
  return context_.memory.at(0, context_.rounds.staging(0, round_), bytes());
}

/// The leader's: true when what all nodes bring lies in its staging.
bool LeadersRound::publish() {
  if (!brought_) return false;
  GrowingBlock& staging = context_.memory.staging(round_);
  if (!crossing_) {
    if (!context_.rounds.may_fill(round_)) return false;
    std::byte* const all = staging.reserve(bytes());
    const auto own_node = static_cast<std::size_t>(context_.node);
    if (!own_.empty()) std::memcpy(all + own_node * stride_, own_.data(), own_.size());
    const std::vector<std::span<const std::byte>> sends(lengths_.size(), own_);
    std::vector<std::span<std::byte>> receives;
    for (std::size_t node = 0; node < lengths_.size(); ++node) {
      receives.emplace_back(all + node * stride_, lengths_[node]);
    }
    crossed_ = context_.cross->exchange(sends, receives, sequence_);
    crossing_ = true;
  }
  if (!crossed_.poll()) return false;
  context_.rounds.publish(round_, staging.location());
  published_ = true;
  return true;
}

AgreementOverNodes::AgreementOverNodes(const BoundUnit& unit, ExchangeContext& context,
                                       std::uint64_t first_sequence)
    : unit_(unit),
      context_(context),
      sizes_(unit, context.topology, context.node),
      memory_round_(
          context, context.rounds_done + rounds() - 1, first_sequence + rounds() - 1,
          std::vector<std::size_t>(context.topology.ranks_of_node.size(), sizeof(Verdict))) {
  if (!sizes_.must_be_exchanged()) {
    extents_ = sizes_.extents();
    return;
  }
  extents_round_.emplace(context, context.rounds_done, first_sequence, sizes_);
}

const ExchangeExtents* AgreementOverNodes::extents() {
  if (!extents_) {
    const std::byte* const all = extents_round_->poll();
    if (!all) return nullptr;
    sizes_.read(all);
    extents_round_->leave();
    extents_ = sizes_.extents();
  }
  return &*extents_;
}

void AgreementOverNodes::tell(bool has_memory) {
  tell_in_node(unit_, context_.local_rank, has_memory);
}

std::optional<int> AgreementOverNodes::lacking() {
  if (memory_round_.leads() && !asked_ && std::ranges::all_of(unit_.exchange.room, has_told)) {
    const int first = first_lacking(unit_);
    const Verdict verdict = first == kNoRank ? kNoRank : context_.rank_of(first);
    memory_round_.bring(std::as_bytes(std::span(&verdict, 1)));
    asked_ = true;
  }
  const std::byte* const all = memory_round_.poll();
  if (!all) return std::nullopt;
  const int first = first_of(all);
  memory_round_.leave();
  return first;
}

/// The first of the verdicts, in places that are numbered as the set's ranks.
int AgreementOverNodes::first_of(const std::byte* verdicts) const {
  int first = kNoRank;
  for (int node = 0; node < context_.topology.nodes(); ++node) {
    Verdict verdict = kNoRank;
    std::memcpy(&verdict, verdicts + static_cast<std::size_t>(node) * memory_round_.stride(),
                sizeof verdict);
    if (verdict == kNoRank) continue;
    if (context_.topology.node_of(verdict) != node) {
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

}  // namespace hora::internal
