#include "ops/hierarchy/exchange_run.h"

#include <algorithm>
#include <utility>

#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// Bytes copied between two polls of the network.
constexpr std::size_t kOwnStep = std::size_t{1} << 20;

}  // namespace

ExchangeRun::ExchangeRun(const BoundUnit& unit, ExchangeContext& context,
                         std::uint64_t first_sequence)
    : unit_(unit),
      context_(context),
      first_sequence_(first_sequence),
      sizes_(unit, context.topology, context.node),
      nodes_(context.topology.ranks_of_node.size()),
      rounds_(sizes_.must_be_exchanged() ? 1 : 0) {
  if (!sizes_.must_be_exchanged()) prepare();
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

// What this rank has copied was published, by this rank as well: none of its crossings is open.
bool ExchangeRun::complete() const {
  return prepared_ && next_copy_ == rounds_ && own_done_ == length_of(own_) &&
         (!push_ || push_->is_ready());
}

bool ExchangeRun::advance() {
  bool any = false;
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
    crossing.work = is_sizes(next_start_) ? start_sizes(next_start_)
                                          : start_data(next_start_, crossing.summands);
    any = true;
  }
  return any;
}

Completion ExchangeRun::start_sizes(std::uint64_t round) {
  if (context_.local_rank != 0) return {};
  const std::uint64_t exchange_round = exchange_round_of(round);
  const std::size_t own_bytes = sizes_.bytes_of(context_.node);
  std::byte* const published = context_.memory.scratch(exchange_round).reserve(own_bytes);
  sizes_.write(published);
  const std::size_t stride = sizes_.stride();
  std::byte* const staging = context_.memory.staging(exchange_round).reserve(nodes_ * stride);
  const std::vector<std::span<const std::byte>> sends(nodes_, {published, own_bytes});
  std::vector<std::span<std::byte>> receives;
  for (std::size_t node = 0; node < nodes_; ++node) {
    receives.emplace_back(staging + node * stride, sizes_.bytes_of(static_cast<int>(node)));
  }
  return context_.cross->exchange(sends, receives, first_sequence_ + round);
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
    const std::uint64_t exchange_round = exchange_round_of(next_copy_);
    if (is_sizes(next_copy_)) {
      sizes_.read(context_.memory.at(0, context_.rounds.staging(0, exchange_round),
                                     nodes_ * sizes_.stride()));
      prepare();
    } else {
      copy_data(next_copy_);
    }
    context_.rounds.copied(exchange_round);
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
      // Of a reduce-scatter all nodes' streams to this one are alike, and staging holds their sum.
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

}  // namespace hora::internal
