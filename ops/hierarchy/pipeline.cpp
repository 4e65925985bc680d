#include "ops/hierarchy/pipeline.h"

#include <hora/error.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ops/hierarchy/exchange_run.h"
#include "ops/hierarchy/memory_group.h"

namespace hora::internal {
namespace {

/// An exchange among the ranks of one node.
class ExchangeInNode final : public PendingWork {
 public:
  ExchangeInNode(const BoundUnit& unit, ExchangeContext& context)
      : context_(context), run_(unit, context, 0) {}
  bool poll() override {
    run_.advance();
    if (!run_.complete()) return false;
    context_.rounds_done += run_.rounds();
    return true;
  }

 private:
  ExchangeContext& context_;
  ExchangeRun run_;
};

}  // namespace

Pipeline::Pipeline(const PipelineOptions& options, NodeControlBlock& control_block,
                   NodeMemory& memory, LocalGroups locals, CrossGroups crosses)
    : options_(options),
      control_block_(control_block),
      order_(control_block.start_order(), control_block.local_rank() == 0),
      locals_(locals),
      crosses_(crosses),
      context_{.topology = options.topology,
               .node = options.node,
               .local_rank = options.local_rank,
               .slices = options.slices,
               .chunk_bytes = options.chunk_bytes,
               .rounds = control_block.exchange_rounds(),
               .memory = ExchangeMemory(memory),
               .cross = crosses.memory,
               .job_memory = options.job_memory} {
  if (!crosses_.device) crosses_.device = crosses_.memory;
}

void Pipeline::start(BoundUnit&& unit) {
  if (lacks_group(unit)) {
    throw Error(ErrorCode::invalid_argument, std::string(name_of(unit.unit.kind)) +
                                                 " of a tensor on " +
                                                 std::string(name_of(unit.unit.device)) +
                                                 " is not possible here: give it a tensor on cpu");
  }
  std::unique_ptr<ActiveUnit>& place = units_.push();
  if (!place) place = std::make_unique<ActiveUnit>();
  ActiveUnit& entry = *place;
  std::swap(entry.unit, unit);
  entry.next_chunk = entry.complete_chunks = 0;
  entry.running = entry.done = false;
  const bool on_cpu = entry.unit.unit.device == DeviceKind::cpu;
  entry.whole = is_exchange(entry.unit.unit.kind) || (!on_cpu && locals_.device_spans_nodes);
  entry.local = on_cpu ? locals_.memory : locals_.device;
  entry.cross = on_cpu ? crosses_.memory : crosses_.device;
}

bool Pipeline::lacks_group(const BoundUnit& unit) const {
  if (is_exchange(unit.unit.kind)) return !unit.work.empty() && !locals_.device_exchange;
  return unit.unit.device != DeviceKind::cpu && !locals_.device;
}

std::uint64_t Pipeline::awaited() const {
  const std::uint64_t complete = completed();
  return done_ > complete ? complete + 1 : 0;
}

bool Pipeline::advance() {
  if (options_.nodes == 1) return run_in_node();
  bool progress = feed();
  progress |= run_whole();
  for (Chunk& chunk : chunks_) progress |= step(chunk);
  while (!chunks_.empty() && chunks_.front().stage == Stage::local_out &&
         chunks_.front().completion.poll()) {
    ++chunks_.front().entry->complete_chunks;
    trace(chunks_.front().part, ChunkStage::done);
    chunks_.pop_front();
    progress = true;
  }
  return retire_units() || progress;
}

bool Pipeline::run_in_node() {
  bool any = false;
  while (!units_.empty()) {
    if (!advance_whole(*units_.front())) return any;
    pop_unit();
    control_block_.set_done(++done_);
    any = true;
  }
  return any;
}

bool Pipeline::run_whole() {
  bool any = false;
  while (!whole_.empty()) {
    if (!advance_whole(*whole_.front())) return any;
    whole_.pop_front();
    any = true;
  }
  return any;
}

/// True when it is complete.
bool Pipeline::advance_whole(ActiveUnit& entry) {
  if (!entry.running) {
    options_.trace.started(entry.unit.number);
    note_begin(entry.unit);
    entry.completion = start_whole(entry);
    entry.running = true;
  }
  entry.done = entry.completion.poll();
  return entry.done;
}

Completion Pipeline::start_whole(ActiveUnit& entry) {
  const BoundUnit& unit = entry.unit;
  const bool is_on_cpu = unit.unit.device == DeviceKind::cpu;
  if (unit.unit.kind == OperationKind::broadcast && is_on_cpu) {
    return Completion(std::make_unique<BroadcastInNode>(unit, control_block_.unit_progress(),
                                                        *entry.local, options_.local_rank));
  }
  if (is_on_cpu && options_.memory_nodes.sum_apart(unit)) {
    return Completion(std::make_unique<MemoryNodeSum>(
        unit, options_.memory_nodes, options_.local_rank, control_block_.unit_progress()));
  }
  if (!is_exchange(unit.unit.kind)) return entry.local->run(unit);
  if (!is_on_device(entry)) return Completion(std::make_unique<ExchangeInNode>(unit, context_));
  if (options_.nodes == 1) {
    entry.agreement = std::make_unique<AgreementInNode>(unit, options_.local_rank);
  } else {
    entry.agreement = std::make_unique<AgreementOverNodes>(unit, context_, next_sequence_);
  }
  return locals_.device_exchange->run(unit, *entry.agreement);
}

/// A staged exchange has no work on the device: it is one of host memory.
bool Pipeline::is_on_device(const ActiveUnit& entry) const {
  return is_exchange(entry.unit.unit.kind) ? !entry.unit.work.empty()
                                           : entry.unit.unit.device != DeviceKind::cpu;
}

std::size_t Pipeline::chunks_of(const ActiveUnit& entry) const {
  if (entry.whole) return 0;
  return entry.cross || entry.local->is_collective() ? entry.unit.unit.chunks() : 0;
}

/// Adasum's factors are of whole tensors: one local rank has all of them.
int Pipeline::slices_of(const Unit& unit) const {
  return unit.op == ReduceOp::adasum ? 1 : options_.slices;
}

bool Pipeline::may_start(const ActiveUnit& entry, StartOrder::Step step) const {
  return !entry.local->is_collective() || order_.allows(step);
}
void Pipeline::note_start(const ActiveUnit& entry, StartOrder::Step step) {
  if (entry.local->is_collective()) order_.start(step);
}

/// Starts chunks while a slot is free.
bool Pipeline::feed() {
  bool any = false;
  for (; feeding_ < units_.size(); ++feeding_) {
    ActiveUnit& entry = *units_[feeding_];
    if (is_exchange(entry.unit.unit.kind)) {
      // Not at the front: earlier units are under way.
      if (feeding_ > 0) return any;
      any |= advance_exchange(entry);
      if (!entry.done) return any;
    } else if (entry.whole) {
      whole_.push_back(&entry);
    }
    while (entry.next_chunk < chunks_of(entry)) {
      if (chunks_.size() == options_.slots) return any;
      if (!may_start(entry, StartOrder::Step::reduce_scatter)) return any;
      const BoundUnit& unit = entry.unit;
      if (entry.next_chunk == 0) note_begin(entry.unit);
      const Range chunk = chunk_range(unit.unit, entry.next_chunk++);
      const Range slice =
          entry.cross ? slice_range(chunk, options_.local_rank, slices_of(unit.unit)) : Range{};
      const std::uint64_t sequence = next_sequence_++;
      const bool has_input =
          unit.unit.kind != OperationKind::broadcast || unit.root_node == options_.node;
      const ChunkPart part{unit,     chunk, slices_of(unit.unit), slice, sequence % options_.slots,
                           has_input};
      note_start(entry, StartOrder::Step::reduce_scatter);
      trace(part, ChunkStage::local_in);
      Completion completion = entry.local->reduce_scatter(part);
      chunks_.push_back({&entry, sequence, part, Stage::local_in, std::move(completion)});
      any = true;
    }
  }
  return any;
}

bool Pipeline::advance_exchange(ActiveUnit& entry) {
  if (is_on_device(entry)) {
    if (!advance_whole(entry)) return false;
    end_exchange(entry, entry.agreement->rounds());
    return true;
  }
  if (!entry.exchange) {
    options_.trace.started(entry.unit.number);
    note_begin(entry.unit);
    entry.exchange = std::make_unique<ExchangeRun>(entry.unit, context_, next_sequence_);
  }
  const bool any = entry.exchange->advance();
  if (!entry.exchange->complete()) return any;
  end_exchange(entry, entry.exchange->rounds());
  entry.done = true;
  return true;
}

/// Nothing else of host memory is under way, so the three counters are equal.
void Pipeline::end_exchange(ActiveUnit& entry, std::uint64_t rounds) {
  next_sequence_ += rounds;
  next_cross_ = next_out_ = next_sequence_;
  context_.rounds_done += rounds;
  entry.exchange.reset();
}

bool Pipeline::step(Chunk& chunk) {
  bool any = false;
  if (chunk.stage == Stage::local_in && chunk.completion.poll()) {
    chunk.stage = Stage::between;
    trace(chunk.part, ChunkStage::ready);
    any = true;
  }
  // Cross operations start in the order of their sequence on every node.
  if (chunk.stage == Stage::between && chunk.sequence == next_cross_) {
    ++next_cross_;
    trace(chunk.part, ChunkStage::cross);
    start_cross(chunk);
    chunk.stage = Stage::cross;
    any = true;
  }
  if (chunk.stage == Stage::cross && chunk.completion.poll()) {
    chunk.stage = Stage::crossed;
    trace(chunk.part, ChunkStage::ready);
  }
  if (chunk.stage == Stage::crossed && chunk.sequence == next_out_ &&
      may_start(*chunk.entry, StartOrder::Step::all_gather)) {
    ++next_out_;
    trace(chunk.part, ChunkStage::local_out);
    note_start(*chunk.entry, StartOrder::Step::all_gather);
    chunk.completion = chunk.entry->local->all_gather(chunk.part);
    chunk.stage = Stage::local_out;
    any = true;
  }
  return any;
}

void Pipeline::start_cross(Chunk& chunk) {
  const std::size_t bytes = chunk.part.slice.bytes;
  if (bytes == 0) return;
  const BoundUnit& unit = chunk.entry->unit;
  CrossGroup& cross = *chunk.entry->cross;
  const std::span<std::byte> staging(chunk.entry->local->staging(chunk.part), bytes);
  if (unit.unit.kind == OperationKind::broadcast) {
    chunk.completion = cross.broadcast(staging, unit.root_node, chunk.sequence);
  } else if (unit.unit.op == ReduceOp::adasum) {
    std::vector<Range> tensors;
    for (const UnitTensor& tensor : unit.unit.tensors) tensors.push_back(tensor.range);
    chunk.completion = cross.adasum(unit.unit.type, staging, std::move(tensors), chunk.sequence);
  } else {
    chunk.completion =
        cross.allreduce({unit.unit.type, unit.unit.op, unit.scale}, staging, chunk.sequence);
  }
}

/// Chunks may cross from and to where the tensor lies (LocalGroup::staging).
MemoryUse Pipeline::withdraw() {
  MemoryUse use = MemoryUse::none;
  for (Chunk& chunk : chunks_) {
    if (!chunk.part.unit.is_lent) continue;
    if (chunk.stage == Stage::cross) use = std::max(use, chunk.completion.cancel());
  }
  return use;
}

bool Pipeline::is_complete(const ActiveUnit& entry) const {
  return entry.whole ? entry.done : entry.complete_chunks == chunks_of(entry);
}

/// Lets go what the unit holds of its submissions.
void Pipeline::pop_unit() {
  units_.front()->agreement.reset();
  units_.front()->unit.clear();
  units_.pop();
}

bool Pipeline::retire_units() {
  bool any = false;
  while (!units_.empty() && is_complete(*units_.front())) {
    pop_unit();
    if (feeding_ > 0) --feeding_;
    ++done_;
    any = true;
  }
  if (any) control_block_.set_done(done_);
  return any;
}

void Pipeline::trace(const ChunkPart& part, ChunkStage stage) const {
  const UnitKey unit = options_.trace.unit(part.unit.number);
  options_.trace.chunk({unit, part.chunk.begin, part.chunk.bytes, part.slot}, stage);
}

}  // namespace hora::internal
