/// SetEngine: from what is decided to what the data path runs.
#include <utility>

#include "core/engine/exchange_header.h"
#include "core/engine/set_engine.h"
#include "core/engine/trace_hooks.h"
#include "core/plan/exchange.h"

namespace hora {

void SetEngine::run(const Batch& batch) {
  std::vector<const Signature*> signatures;
  signatures.reserve(batch.submissions.size());
  for (const auto& submission : batch.submissions) signatures.push_back(&submission->signature);
  const PlanLimits limits{.fusion_bytes = shared_.parts.settings.fusion_threshold,
                          .alone_bytes = single_node_ ? kAloneBytes : 0,
                          .chunk_bytes = single_node_ ? 0 : shared_.parts.settings.chunk_size};
  for (Unit& unit : plan(signatures, limits)) {
    // One kind, type and operation: if one of its tensors goes through host memory, all do.
    if (!on_device(*signatures[unit.tensors.front().index])) unit.device = DeviceKind::cpu;
    StartedUnit& entry = started_units_.emplace_back();
    entry.unit = ++units_started_;
    for (const UnitTensor& tensor : unit.tensors) {
      entry.submissions.push_back(batch.submissions[tensor.index]);
    }
    trace_unit(trace_, entry.unit, unit, entry.submissions);
    parts_.data_path->start(bind(std::move(unit), batch));
  }
}

BoundUnit SetEngine::bind(Unit unit, const Batch& batch) {
  BoundUnit bound;
  bound.number = units_started_;
  bound.scale = unit.postscale;
  if (unit.kind == OperationKind::add_process_set) shares_device_ = true;
  bound.takes_turns = shares_device_;
  if (unit.op == ReduceOp::average) bound.scale /= parts_.topology.size();
  if (unit.kind == OperationKind::broadcast) {
    bound.root_node = parts_.topology.node_of(unit.root);
    bound.root_local = parts_.topology.local_rank_of(unit.root);
  }
  bound.local_size = control_block_.local_size();
  const auto size = static_cast<std::size_t>(bound.local_size);
  for (const UnitTensor& tensor : unit.tensors) {
    Submission& mine = *batch.submissions[tensor.index];
    const std::vector<Location>& locations = batch.locations[tensor.index];
    if (changes_sets(unit.kind)) mine.peer_locations = locations;
    if (mine.memory.work()) bound.work.push_back(mine.memory.work());
    if (mine.memory.is_lent()) bound.is_lent = true;
    if (mine.is_joined_proxy) bound.is_joined_proxy = true;
    if (is_exchange(unit.kind)) {
      bind_exchange(bound, mine, locations);
      continue;
    }
    const std::size_t position = bound.memory.size() / size;
    if (std::byte* to = mine.memory.fetches_to()) bound.fetches.push_back({position, to});
    if (const std::byte* from = mine.memory.published_from()) {
      bound.publishes.push_back({position, from});
    }
    for (int r = 0; r < bound.local_size; ++r) {
      std::byte* address = mine.memory.own_data();
      const Location location = locations[static_cast<std::size_t>(r)];
      if (r != control_block_.local_rank() && mine.memory.bytes() > 0 &&
          unit.device == DeviceKind::cpu) {
        address = location == kNowhere ? nullptr
                                       : parts_.memory->address(r, location, mine.memory.bytes());
      }
      bound.memory.push_back(address);
    }
  }
  bound.unit = std::move(unit);
  return bound;
}

void SetEngine::bind_exchange(BoundUnit& bound, const Submission& mine,
                              const std::vector<Location>& locations) {
  BoundExchange& exchange = bound.exchange;
  exchange.row_bytes = mine.signature.row_bytes();
  exchange.result = mine.result;
  const Topology& topology = parts_.topology;
  const std::size_t count = extents_of_rank(mine.signature.kind, topology.size());
  const std::vector<int>& ranks =
      topology.ranks_of_node[static_cast<std::size_t>(topology.node_of(shared_.parts.rank))];
  for (int r = 0; r < bound.local_size; ++r) {
    const auto local = static_cast<std::size_t>(r);
    const bool is_mine = r == control_block_.local_rank();
    const std::byte* memory =
        is_mine ? mine.memory.header()
                : parts_.memory->address(r, locations[local], ExchangeHeader::bytes_for(count));
    const ExchangePart part(memory, count, exchange.row_bytes, ranks[local]);
    exchange.rows.push_back(part.extents);
    const bool pushes = part.header.payload == kNowhere;
    if (single_node_ && may_push(mine.signature.kind)) {
      exchange.pushes.push_back(pushes);
      exchange.expected.push_back(part.header.expected);
    }
    std::byte* input = is_mine ? mine.memory.own_data() : nullptr;
    if (!is_mine && part.header.bytes > 0 && !mine.memory.work() && !pushes) {
      input = parts_.memory->address(r, part.header.payload,
                                     static_cast<std::size_t>(part.header.bytes));
    }
    bound.memory.push_back(input);
  }
}

}  // namespace hora
