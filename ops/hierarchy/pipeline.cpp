#include "ops/hierarchy/pipeline.h"

#include "ops/hierarchy/memory_group.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// An exchange of host memory: a staged one has no work on the device.
bool is_host_exchange(const BoundUnit& unit) {
  return is_exchange(unit.unit.kind) && unit.work.empty();
}

}  // namespace

PipelineOptions PipelineOptions::of(const Topology& set, int rank) {
  return {.node = set.node_of(rank),
          .nodes = set.nodes(),
          .local_rank = set.local_rank_of(rank),
          .slices = set.smallest_node(),
          .topology = renumbered(set)};
}

Pipeline::Pipeline(const PipelineOptions& options, NodeControlBlock& control_block,
                   NodeMemory& memory, LocalGroup& local, CrossGroup* cross,
                   const DeviceGroups& device)
    : options_(options),
      control_block_(control_block),
      order_(control_block.start_order(), control_block.local_rank() == 0),
      local_(local),
      cross_(cross),
      device_(device),
      exchanges_(options_, control_block, memory, cross) {
  if (!device_.cross) device_.cross = cross_;
}

void Pipeline::start(BoundUnit&& unit) {
  if (lacks_group(unit)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} of a tensor on {} is not possible here: give it a tensor on cpu",
                            name_of(unit.unit.kind), name_of(unit.unit.device)));
  }
  std::unique_ptr<ActiveUnit>& place = units_.push();
  if (!place) place = std::make_unique<ActiveUnit>();
  ActiveUnit& entry = *place;
  std::swap(entry.unit, unit);
  entry.next_chunk = entry.complete_chunks = 0;
  entry.running = entry.done = false;
  const bool on_cpu = entry.unit.unit.device == DeviceKind::cpu;
  entry.whole = is_exchange(entry.unit.unit.kind) || (!on_cpu && device_.spans_nodes);
  entry.local = on_cpu ? &local_ : device_.local;
  entry.cross = on_cpu ? cross_ : device_.cross;
}

bool Pipeline::lacks_group(const BoundUnit& unit) const {
  if (is_exchange(unit.unit.kind)) return !unit.work.empty() && !device_.exchange;
  return unit.unit.device != DeviceKind::cpu && !device_.local;
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
    any |= advance_whole(*units_.front());
    if (!units_.front()->done) return any;
    pop_unit();
    control_block_.set_done(++done_);
  }
  return any;
}

bool Pipeline::run_whole() {
  bool any = false;
  while (!whole_.empty()) {
    any |= advance_whole(*whole_.front());
    if (!whole_.front()->done) return any;
    whole_.pop_front();
  }
  return any;
}

/// True where there was progress.
bool Pipeline::advance_whole(ActiveUnit& entry) {
  bool any = !entry.running;
  if (!entry.running) {
    options_.trace.started(entry.unit.number);
    note_begin(entry.unit);
    start_whole(entry);
    entry.running = true;
  }
  if (is_host_exchange(entry.unit)) {
    any |= exchanges_.advance();
    entry.done = exchanges_.complete();
  } else {
    entry.done = entry.completion.poll();
  }
  if (entry.done && is_exchange(entry.unit.unit.kind)) {
    // Nothing else of host memory is under way, so the three counters are equal.
    next_sequence_ += exchanges_.end();
    next_cross_ = next_out_ = next_sequence_;
  }
  return any || entry.done;
}

void Pipeline::start_whole(ActiveUnit& entry) {
  const BoundUnit& unit = entry.unit;
  const bool is_on_cpu = unit.unit.device == DeviceKind::cpu;
  if (is_host_exchange(unit)) {
    exchanges_.start(unit, next_sequence_);
  } else if (is_exchange(unit.unit.kind)) {
    entry.completion = device_.exchange->run(unit, exchanges_.agree(unit, next_sequence_));
  } else if (unit.unit.kind == OperationKind::broadcast && is_on_cpu) {
    entry.completion = Completion(std::make_unique<BroadcastInNode>(
        unit, control_block_.unit_progress(), *entry.local, options_.local_rank));
  } else if (is_on_cpu && options_.memory_nodes.sum_apart(unit)) {
    entry.completion = Completion(std::make_unique<MemoryNodeSum>(
        unit, options_.memory_nodes, options_.local_rank, control_block_.unit_progress()));
  } else {
    entry.completion = entry.local->run(unit);
  }
}

std::size_t Pipeline::chunks_of(const ActiveUnit& entry) const {
  if (entry.whole) return 0;
  return entry.cross || entry.local->is_collective() ? entry.unit.unit.chunks() : 0;
}

/// Adasum's factors are of whole tensors: one local rank has all of them.
int Pipeline::slices_of(const Unit& unit) const {
  return unit.op == ReduceOp::adasum ? 1 : options_.slices;
}

/// Starts chunks while a slot is free.
bool Pipeline::feed() {
  bool any = false;
  for (; feeding_ < units_.size(); ++feeding_) {
    ActiveUnit& entry = *units_[feeding_];
    if (is_exchange(entry.unit.unit.kind)) {
      // Not at the front: earlier units are under way.
      if (feeding_ > 0) return any;
      any |= advance_whole(entry);
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

void Pipeline::reduce(const Signature& signature, std::span<const std::byte* const> inputs,
                      std::span<std::byte* const> outputs, double pre, double post) {
  internal::reduce(signature.type, signature.op, inputs, outputs,
                   signature.bytes() / size_of(signature.type), {.pre = pre, .post = post});
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

/// Lets go what the unit holds of its submissions.
void Pipeline::pop_unit() {
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
