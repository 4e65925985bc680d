#include "core/engine/units.h"

#include <utility>

#include "core/engine/exchange_header.h"
#include "core/plan/exchange.h"

namespace hora {
namespace {

/// Before the unit starts.
void trace_unit(const Tracer& trace, std::uint64_t number, const Unit& unit,
                const std::vector<std::shared_ptr<Submission>>& submissions) {
  if (!trace.on()) return;
  std::vector<TensorFacts> tensors;
  for (const auto& submission : submissions) {
    tensors.push_back({submission->name, submission->memory.bytes(), submission->decided_at});
  }
  const bool reduces =
      unit.kind == OperationKind::allreduce || unit.kind == OperationKind::reduce_scatter;
  const UnitFacts facts{.operation = name_of(unit.kind),
                        .type = name_of(unit.type),
                        .op = reduces ? name_of(unit.op) : std::string_view(),
                        .bytes = unit.bytes,
                        .tensors = tensors.size(),
                        .chunks = unit.chunks()};
  trace.record(
      [&](Recording& recording) { recording.planned(trace.unit(number), facts, tensors); });
}

}  // namespace

void Units::start(const DecidedBatch& batch) {
  std::vector<const Signature*> signatures;
  signatures.reserve(batch.submissions.size());
  for (const auto& submission : batch.submissions) signatures.push_back(&submission->signature);
  const bool single_node = memory_.single_node();
  const PlanLimits limits{.fusion_bytes = engine_.settings.fusion_threshold,
                          .alone_bytes = single_node ? kAloneBytes : 0,
                          .chunk_bytes = single_node ? 0 : engine_.settings.chunk_size};
  for (Unit& unit : plan(signatures, limits)) {
    // One kind, type and operation: if one of its tensors goes through host memory, all do.
    if (!memory_.on_device(*signatures[unit.tensors.front().index])) unit.device = DeviceKind::cpu;
    Started& entry = started_.emplace_back();
    entry.number = ++number_;
    for (const UnitTensor& tensor : unit.tensors) {
      entry.submissions.push_back(batch.submissions[tensor.index]);
    }
    trace_unit(trace_, entry.number, unit, entry.submissions);
    parts_.data_path->start(bind(std::move(unit), batch));
  }
}

BoundUnit Units::bind(Unit unit, const DecidedBatch& batch) {
  BoundUnit bound;
  bound.number = number_;
  bound.scale = unit.postscale;
  if (unit.kind == OperationKind::add_process_set) shares_device_ = true;
  bound.takes_turns = shares_device_;
  if (unit.op == ReduceOp::average) bound.scale /= parts_.topology.size();
  if (unit.kind == OperationKind::broadcast) {
    bound.root_node = parts_.topology.node_of(unit.root);
    bound.root_local = parts_.topology.local_rank_of(unit.root);
  }
  bound.local_size = memory_.local_size;
  for (const UnitTensor& tensor : unit.tensors) {
    Submission& mine = *batch.submissions[tensor.index];
    const std::vector<Location>& locations = batch.locations[tensor.index];
    if (changes_sets(unit.kind)) mine.peer_locations = locations;
    if (mine.memory.work()) bound.work.push_back(mine.memory.work());
    if (mine.memory.is_lent()) bound.is_lent = true;
    if (mine.is_joined_proxy) bound.is_joined_proxy = true;
    if (is_exchange(unit.kind)) {
      bind_exchange(bound, mine, locations);
    } else {
      bind_tensor(bound, mine.memory, locations, unit.device == DeviceKind::cpu);
    }
  }
  bound.unit = std::move(unit);
  return bound;
}

void Units::bind_tensor(BoundUnit& bound, const TensorMemory& mine,
                        const std::vector<Location>& locations, bool on_host) const {
  const std::size_t position = bound.memory.size() / static_cast<std::size_t>(bound.local_size);
  if (std::byte* const to = mine.fetches_to()) bound.fetches.push_back({position, to});
  if (const std::byte* const from = mine.published_from()) {
    bound.publishes.push_back({position, from});
  }
  for (int r = 0; r < bound.local_size; ++r) {
    std::byte* address = mine.own_data();
    const Location location = locations[static_cast<std::size_t>(r)];
    if (r != memory_.local_rank && mine.bytes() > 0 && on_host) {
      address = location == kNowhere ? nullptr : memory_.memory.address(r, location, mine.bytes());
    }
    bound.memory.push_back(address);
  }
}

void Units::bind_exchange(BoundUnit& bound, const Submission& mine,
                          const std::vector<Location>& locations) const {
  BoundExchange& exchange = bound.exchange;
  exchange.row_bytes = mine.signature.row_bytes();
  exchange.result = mine.result;
  const Topology& topology = parts_.topology;
  const std::size_t count = extents_of_rank(mine.signature.kind, topology.size());
  const std::vector<int>& ranks =
      topology.ranks_of_node[static_cast<std::size_t>(topology.node_of(memory_.rank))];
  for (int r = 0; r < bound.local_size; ++r) {
    const auto local = static_cast<std::size_t>(r);
    const bool is_mine = r == memory_.local_rank;
    const std::byte* header =
        is_mine ? mine.memory.header()
                : memory_.memory.address(r, locations[local], ExchangeHeader::bytes_for(count));
    const ExchangePart part(header, count, exchange.row_bytes, ranks[local]);
    exchange.rows.push_back(part.extents);
    const bool pushes = part.header.payload == kNowhere;
    if (memory_.single_node() && may_push(mine.signature.kind)) {
      exchange.pushes.push_back(pushes);
      exchange.expected.push_back(part.header.expected);
    }
    std::byte* input = is_mine ? mine.memory.own_data() : nullptr;
    if (!is_mine && part.header.bytes > 0 && !mine.memory.work() && !pushes) {
      input = memory_.memory.address(r, part.header.payload,
                                     static_cast<std::size_t>(part.header.bytes));
    }
    bound.memory.push_back(input);
  }
}

std::uint64_t Units::number_of(const Submission& submission) const {
  for (const Started& unit : started_) {
    for (const auto& one : unit.submissions) {
      if (one.get() == &submission) return unit.number;
    }
  }
  return 0;
}

std::vector<std::shared_ptr<Submission>> Units::take_completed() {
  trace_.completed(started_.front().number);
  auto submissions = std::move(started_.front().submissions);
  started_.pop_front();
  return submissions;
}

}  // namespace hora
