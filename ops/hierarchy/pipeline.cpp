#include "ops/hierarchy/pipeline.h"

#include <utility>

namespace hora {

Pipeline::Pipeline(const PipelineOptions& options, NodeBoard& board, LocalGroup& local,
                   CrossGroup* cross)
    : options_(options), board_(board), local_(local), cross_(cross), staging_(options.slots) {}

void Pipeline::start(BoundUnit unit) {
  units_.push_back(std::make_unique<Entry>());
  units_.back()->unit = std::move(unit);
}

std::uint64_t Pipeline::awaited() const {
  const std::uint64_t complete = completed();
  return done_ > complete ? complete + 1 : 0;
}

bool Pipeline::advance() {
  if (options_.nodes == 1) return run_in_node();
  bool progress = feed();
  for (Chunk& chunk : chunks_) progress |= step(chunk);
  while (!chunks_.empty() && chunks_.front().stage == Stage::local_out &&
         chunks_.front().completion.poll()) {
    ++chunks_.front().entry->spread;
    chunks_.pop_front();
    progress = true;
  }
  return retire_units() || progress;
}

bool Pipeline::run_in_node() {
  bool any = false;
  while (!units_.empty()) {
    Entry& entry = *units_.front();
    if (!entry.running) {
      entry.in_node = local_.run(entry.unit, {0, entry.unit.unit.bytes});
      entry.running = true;
    }
    if (!entry.in_node.poll()) return any;
    units_.pop_front();
    board_.set_done(++done_);
    any = true;
  }
  return any;
}

std::size_t Pipeline::chunks_of(const Entry& entry) const {
  return cross_ ? entry.unit.unit.chunks() : 0;
}

/// Starts chunks while there is a slot for them.
bool Pipeline::feed() {
  bool any = false;
  for (; feeding_ < units_.size(); ++feeding_) {
    Entry& entry = *units_[feeding_];
    while (entry.next_chunk < chunks_of(entry)) {
      if (chunks_.size() == options_.slots) return any;
      const Range chunk = chunk_range(entry.unit.unit, entry.next_chunk++);
      const Range slice = slice_range(chunk, options_.local_rank, options_.slices);
      const std::uint64_t sequence = next_sequence_++;
      Completion completion;
      const bool has_input =
          entry.unit.unit.kind != OperationKind::broadcast || entry.unit.root_node == options_.node;
      auto& block = staging_[sequence % options_.slots];
      if (block.size() < slice.bytes + kAlignment) block.resize(slice.bytes + kAlignment);
      if (has_input) completion = local_.reduce_scatter(entry.unit, slice, slot(sequence));
      chunks_.push_back({&entry, sequence, slice, Stage::local_in, std::move(completion)});
      any = true;
    }
  }
  return any;
}

bool Pipeline::step(Chunk& chunk) {
  bool any = false;
  if (chunk.stage == Stage::local_in && chunk.completion.poll()) {
    chunk.stage = Stage::between;
    any = true;
  }
  // Cross operations start in the order of their sequence on every node.
  if (chunk.stage == Stage::between && chunk.sequence == next_cross_) {
    ++next_cross_;
    start_cross(chunk);
    chunk.stage = Stage::cross;
    any = true;
  }
  if (chunk.stage == Stage::cross && chunk.completion.poll()) chunk.stage = Stage::crossed;
  if (chunk.stage == Stage::crossed && chunk.sequence == next_out_) {
    ++next_out_;
    chunk.completion = local_.all_gather(chunk.entry->unit, chunk.slice, slot(chunk.sequence));
    chunk.stage = Stage::local_out;
    any = true;
  }
  return any;
}

void Pipeline::start_cross(Chunk& chunk) {
  if (chunk.slice.bytes == 0) return;
  const BoundUnit& unit = chunk.entry->unit;
  const std::span<std::byte> staging(slot(chunk.sequence), chunk.slice.bytes);
  chunk.completion = unit.unit.kind == OperationKind::broadcast
                         ? cross_->broadcast(staging, unit.root_node, chunk.sequence)
                         : cross_->allreduce(unit.unit.type, staging, unit.scale, chunk.sequence);
}

bool Pipeline::retire_units() {
  bool any = false;
  while (!units_.empty() && units_.front()->spread == chunks_of(*units_.front())) {
    if (units_.front()->next_chunk < chunks_of(*units_.front())) break;
    units_.pop_front();
    if (feeding_ > 0) --feeding_;
    ++done_;
    any = true;
  }
  if (any) board_.set_done(done_);
  return any;
}

std::byte* Pipeline::slot(std::uint64_t sequence) {
  auto& block = staging_[sequence % options_.slots];
  const auto address = reinterpret_cast<std::uintptr_t>(block.data());
  return block.data() + (align_up(address) - address);
}

}  // namespace hora
