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
      stream_chunk_(round_bytes(context.chunk_bytes, context.topology.nodes())),
      rounds_(rounds_of_sizes()) {
  if (!sizes_.must_be_exchanged()) {
    prepare();
  } else if (context_.cross) {
    prepare_sends(ExchangeMap(context_.topology, sizes_.own_extents()));
  }
}

void ExchangeRun::prepare() {
  const ExchangeMap map(context_.topology, sizes_.extents());
  prepared_ = true;
  const std::uint64_t rounds = rounds_of(map.longest_stream());
  if (auto refusal = map.refusal(context_.job_memory)) {
    unit_.exchange.result->refuse(std::move(*refusal));
    if (!sizes_.must_be_exchanged() || rounds == 0) return;
    // Some nodes have sent what is theirs in the first round.
    rounds_ = sendable_ = rounds_of_sizes() + 1;
    prepare_receives(map);
    return;
  }
  prepare_result(map);
  if (!sizes_.must_be_exchanged() && context_.cross) prepare_sends(map);
  prepare_receives(map);
  for (int node = 0; node < context_.topology.nodes(); ++node) {
    incoming_.push_back(map.layout(node, context_.node));
  }
  // A reduce-scatter's own part is summed with that of the other nodes.
  if (!sums() || nodes_ == 1) {
    own_ = moved_by(context_.local_rank, unit_.exchange.pushes,
                    incoming_[static_cast<std::size_t>(context_.node)]);
  }
  rounds_ += rounds;
  sendable_ = rounds_;
}

/// What this node sends: by a map in which the extents of its own ranks are known.
void ExchangeRun::prepare_sends(const ExchangeMap& map) {
  std::size_t longest = 0;
  for (int node = 0; node < context_.topology.nodes(); ++node) {
    outgoing_.push_back(node == context_.node ? ByteLayout{} : map.layout(context_.node, node));
    longest = std::max(longest, length_of(outgoing_.back()));
  }
  sent_stride_ = stride_of(longest);
  sendable_ = rounds_of_sizes() + rounds_of(longest);
}

void ExchangeRun::prepare_receives(const ExchangeMap& map) {
  stride_ = stride_of(map.longest_stream());
  for (int node = 0; node < context_.topology.nodes(); ++node) {
    stream_bytes_.push_back(map.stream_bytes(node, context_.node));
  }
}

void ExchangeRun::prepare_result(const ExchangeMap& map) {
  const int rank = context_.rank_of(context_.local_rank);
  const std::size_t bytes = map.result_bytes(rank);
  result_ = {unit_.exchange.result->allocate(map.result_rows(rank), bytes), bytes};
  if (ExchangePush::is_needed(unit_)) {
    push_.emplace(unit_, context_, map, result_.at(0), bytes);
    rounds_ = next_copy_ = push_->rounds();
  }
}

std::size_t ExchangeRun::stride_of(std::size_t longest_stream) const {
  const std::size_t chunk = std::min(stream_chunk_, align_up(longest_stream));
  return slice_range({0, chunk}, 0, context_.slices).bytes;
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
  const bool was_prepared = prepared_;
  any |= copy_rounds();
  if (context_.cross && prepared_ != was_prepared) any |= start_rounds();
  if (push_ && !push_->poll()) return any;
  return any || copy_own();
}

bool ExchangeRun::start_rounds() {
  bool any = false;
  for (Crossing& crossing : crossings_) {
    if (crossing.received || !prepared_) continue;
    receive(crossing);
    any = true;
  }
  for (; next_start_ < std::max(sendable_, rounds_) &&
         context_.rounds.may_fill(exchange_round_of(next_start_));
       ++next_start_) {
    Crossing& crossing = crossings_.emplace_back();
    crossing.round = next_start_;
    if (is_sizes(next_start_) || prepared_) receive(crossing);
    send(crossing);
    any = true;
  }
  return any;
}

void ExchangeRun::send(Crossing& crossing) {
  crossing.sent = is_sizes(crossing.round) ? send_sizes(crossing.round) : send_data(crossing.round);
}

void ExchangeRun::receive(Crossing& crossing) {
  crossing.received =
      is_sizes(crossing.round) ? receive_sizes(crossing.round) : receive_data(crossing);
}

Completion ExchangeRun::send_sizes(std::uint64_t round) {
  if (context_.local_rank != 0) return {};
  const std::size_t bytes = sizes_.bytes_of(context_.node);
  std::byte* const own = context_.memory.scratch(exchange_round_of(round)).reserve(bytes);
  sizes_.write(own);
  const std::vector<std::span<const std::byte>> parts(nodes_, {own, bytes});
  return context_.cross->send(parts, first_sequence_ + round);
}

Completion ExchangeRun::receive_sizes(std::uint64_t round) {
  if (context_.local_rank != 0) return {};
  const std::size_t stride = sizes_.stride();
  std::byte* const staging =
      context_.memory.staging(exchange_round_of(round)).reserve(nodes_ * stride);
  std::vector<std::span<std::byte>> parts;
  for (std::size_t node = 0; node < nodes_; ++node) {
    parts.emplace_back(staging + node * stride, sizes_.bytes_of(static_cast<int>(node)));
  }
  return context_.cross->receive(parts, first_sequence_ + round);
}

Range ExchangeRun::slice(std::size_t stream_bytes, std::uint64_t round, int owner) const {
  const auto chunk = static_cast<std::size_t>(round - rounds_of_sizes());
  const std::size_t begin = std::min(chunk * stream_chunk_, stream_bytes);
  return slice_range({begin, std::min(stream_chunk_, stream_bytes - begin)}, owner,
                     context_.slices);
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

/// A slice for each node that is sent to; of a reduce-scatter one from each node besides, all known
/// from the start.
std::byte* ExchangeRun::scratch(std::uint64_t exchange_round) {
  const std::size_t received = sums() ? stride_ : 0;
  return context_.memory.scratch(exchange_round).reserve(nodes_ * (sent_stride_ + received));
}

Completion ExchangeRun::send_data(std::uint64_t round) {
  const bool is_gather = unit_.unit.kind == OperationKind::allgather;
  std::byte* const gathered = scratch(exchange_round_of(round));
  std::vector<std::span<const std::byte>> parts(nodes_);
  std::span<const std::byte> to_all;
  for (std::size_t node = 0; node < nodes_; ++node) {
    if (node == static_cast<std::size_t>(context_.node)) continue;
    const ByteLayout& layout = outgoing_[node];
    const Range range = slice(length_of(layout), round, context_.local_rank);
    parts[node] = is_gather && !to_all.empty()
                      ? to_all
                      : outgoing(layout, range, gathered + node * sent_stride_);
    if (is_gather) to_all = parts[node];
  }
  return context_.cross->send(parts, first_sequence_ + round);
}

Completion ExchangeRun::receive_data(Crossing& crossing) {
  const std::uint64_t exchange_round = exchange_round_of(crossing.round);
  const auto own_node = static_cast<std::size_t>(context_.node);
  std::byte* const staging =
      context_.memory.staging(exchange_round).reserve((sums() ? 1 : nodes_) * stride_);
  std::byte* const incoming = sums() ? scratch(exchange_round) + nodes_ * sent_stride_ : staging;
  std::vector<std::span<std::byte>> parts(nodes_);
  for (std::size_t node = 0; node < nodes_; ++node) {
    const Range in = slice(stream_bytes_[node], crossing.round, context_.local_rank);
    const bool may_land = !sums() && !incoming_.empty();
    std::byte* const target = may_land ? landing(cut(incoming_[node], in)) : nullptr;
    parts[node] = {target ? target : incoming + node * stride_, in.bytes};
  }
  Completion received = context_.cross->receive(parts, first_sequence_ + crossing.round);
  if (sums()) {
    for (const auto& part : parts) crossing.summands.push_back(part.data());
    const Range own = slice(stream_bytes_[own_node], crossing.round, context_.local_rank);
    crossing.summands[own_node] = outgoing(incoming_[own_node], own, parts[own_node].data()).data();
  }
  return received;
}

bool ExchangeRun::finish_crossings() {
  bool any = false;
  while (!crossings_.empty()) {
    Crossing& crossing = crossings_.front();
    if (!crossing.received || !crossing.received->poll() || !crossing.sent.poll()) break;
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
  const Range range = slice(stream_bytes_[own_node], crossing.round, context_.local_rank);
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
  if (incoming_.empty()) return;  // refused
  for (int owner = 0; owner < context_.slices; ++owner) {
    const std::byte* const staging =
        context_.memory.at(owner, context_.rounds.staging(owner, exchange_round_of(round)),
                           (sums() ? 1 : nodes_) * stride_);
    for (std::size_t node = 0; node < nodes_; ++node) {
      // Of a reduce-scatter all nodes' streams to this one are alike, and staging holds their sum.
      const bool is_own = node == static_cast<std::size_t>(context_.node);
      if (is_own != sums()) continue;
      const ByteLayout transfers = cut(incoming_[node], slice(stream_bytes_[node], round, owner));
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
