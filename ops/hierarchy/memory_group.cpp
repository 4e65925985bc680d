#include "ops/hierarchy/memory_group.h"

#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// The same bytes of a tensor on several ranks.
class Places {
 public:
  void add(std::byte* place) { places_[count_++] = place; }
  std::span<std::byte* const> outputs() const { return {places_.data(), count_}; }
  std::span<const std::byte* const> inputs() const { return {places_.data(), count_}; }

 private:
  std::array<std::byte*, kMaxLocalSize> places_;
  std::size_t count_ = 0;
};

std::byte* place_of(const BoundUnit& unit, const Run& run, int rank) {
  return unit.tensor(run.tensor, rank) + run.range.begin;
}

/// One run on the local ranks that have the tensor, which joined ranks do not.
Places all_places(const BoundUnit& unit, const Run& run) {
  Places places;
  for (int r = 0; r < unit.local_size; ++r) {
    if (unit.tensor(run.tensor, r)) places.add(place_of(unit, run, r));
  }
  return places;
}

/// The sum of one rank, whose memory it stays in.
bool is_sum_already(std::span<const std::byte* const> inputs, const std::byte* sum,
                    double prescale) {
  return inputs.size() == 1 && inputs[0] == sum && prescale == 1.0;
}

std::size_t elements(const BoundUnit& unit, const Run& run) {
  return run.range.bytes / size_of(unit.unit.type);
}

/// Where `slice` lies on this local rank if it is all of one tensor's, without padding, which
/// belongs to none. Null otherwise, and where the rank has no such tensor.
std::byte* in_one_tensor(const BoundUnit& unit, Range slice, int local_rank) {
  std::byte* place = nullptr;
  for_each_run(unit.unit, slice, [&](const Run& run) {
    if (run.range.bytes != slice.bytes) return;
    std::byte* const tensor = unit.tensor(run.tensor, local_rank);
    if (tensor) place = tensor + run.range.begin;
  });
  return place;
}

/// To all outputs but the input itself.
void spread_to_others(const std::byte* input, std::span<std::byte* const> outputs,
                      std::size_t bytes) {
  std::array<std::byte*, kMaxLocalSize> others;
  const auto end = std::copy_if(outputs.begin(), outputs.end(), others.begin(),
                                [input](const std::byte* output) { return output != input; });
  const auto count = static_cast<std::size_t>(end - others.begin());
  if (count > 0) copy_to_all(input, {others.data(), count}, bytes);
}

/// Short enough that what a few ranks of a memory node bring for it fits their core's cache, and
/// long enough that its announcement costs nothing beside it.
constexpr std::size_t kStep = 4 * UnitProgress::kStep;

/// The operation inside a node: Adasum is between nodes.
ReduceOp op_in_node(const Unit& unit) {
  return unit.op == ReduceOp::adasum ? ReduceOp::sum : unit.op;
}

}  // namespace

std::byte* MemoryGroup::staging(const ChunkPart& part) {
  const BoundUnit& unit = part.unit;
  const bool reads_root = unit.unit.kind == OperationKind::broadcast && part.has_input;
  std::byte* const place =
      in_one_tensor(unit, part.slice, reads_root ? unit.root_local : local_rank_);
  return place ? place : in_slot(part.slot, part.slice.bytes);
}

std::byte* MemoryGroup::in_slot(std::size_t slot, std::size_t bytes) {
  if (slot >= staging_.size()) staging_.resize(slot + 1);
  auto& block = staging_[slot];
  if (block.size() < bytes + kAlignment) block.resize(bytes + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(block.data());
  return block.data() + (align_up(address) - address);
}

Completion MemoryGroup::run(const BoundUnit& unit) {
  const Range own = slice_range({0, unit.unit.bytes}, local_rank_, local_size_);
  for_each_run(unit.unit, own, [&](const Run& run) {
    const Places memory = all_places(unit, run);
    if (unit.unit.kind == OperationKind::broadcast) {
      spread_to_others(place_of(unit, run, unit.root_local), memory.outputs(), run.range.bytes);
    } else {
      reduce(unit.unit.type, op_in_node(unit.unit), memory.inputs(), memory.outputs(),
             elements(unit, run), {.pre = unit.unit.prescale, .post = unit.scale});
    }
  });
  return {};
}

Completion MemoryGroup::reduce_scatter(const ChunkPart& part) {
  if (!part.has_input) return {};
  const BoundUnit& unit = part.unit;
  std::byte* const staged = staging(part);
  for (const Run& run : runs(unit.unit, part.slice)) {
    const Places memory = all_places(unit, run);
    std::byte* const out = staged + run.offset;
    if (unit.unit.kind == OperationKind::broadcast) {
      const std::byte* const in = place_of(unit, run, unit.root_local);
      if (in != out) copy_to_all(in, {&out, 1}, run.range.bytes);
    } else if (is_sum_already(memory.inputs(), out, unit.unit.prescale)) {
      continue;
    } else if (memory.inputs().empty()) {
      fill_identity(unit.unit.type, unit.unit.op, out, elements(unit, run));
    } else {
      reduce(unit.unit.type, op_in_node(unit.unit), memory.inputs(), {&out, 1}, elements(unit, run),
             {.pre = unit.unit.prescale});
    }
  }
  return {};
}

Completion MemoryGroup::all_gather(const ChunkPart& part) {
  const std::byte* const staged = staging(part);
  for (const Run& run : runs(part.unit.unit, part.slice)) {
    spread_to_others(staged + run.offset, all_places(part.unit, run).outputs(), run.range.bytes);
  }
  return {};
}

BroadcastInNode::BroadcastInNode(const BoundUnit& unit, UnitProgress progress, LocalGroup& group,
                                 int local_rank)
    : unit_(unit),
      progress_(progress),
      group_(group),
      is_root_(local_rank == unit.root_local),
      is_followed_(is_followed(unit.unit)) {}

bool BroadcastInNode::poll() {
  if (is_followed_ && is_root_) publish();
  const std::size_t readable = is_followed_ && !is_root_
                                   ? progress_.readable(unit_.root_local, unit_.number)
                                   : std::numeric_limits<std::size_t>::max();
  fetch(readable);
  return readable >= unit_.unit.bytes && group_.run(unit_).poll();
}

void BroadcastInNode::publish() {
  for (const BoundUnit::Publish& part : unit_.publishes) {
    const Range range = unit_.unit.tensors[part.position].range;
    std::byte* const block = unit_.tensor(part.position, unit_.root_local);
    for (std::size_t done = 0; done < range.bytes; done += UnitProgress::kStep) {
      progress_.leave(unit_.number, range.begin + done);
      const std::size_t step = std::min(UnitProgress::kStep, range.bytes - done);
      publish_copy(block + done, part.source + done, step);
    }
  }
  progress_.leave_all(unit_.number);
}

void BroadcastInNode::fetch(std::size_t readable) {
  for (const BoundUnit::Fetch& part : unit_.fetches) {
    const Range range = unit_.unit.tensors[part.position].range;
    const std::size_t begin = std::max(fetched_, range.begin);
    const std::size_t end = std::min(readable, range.begin + range.bytes);
    if (begin >= end) continue;
    const std::byte* const block = unit_.tensor(part.position, unit_.root_local);
    const std::size_t offset = begin - range.begin;
    std::memcpy(part.target + offset, block + offset, end - begin);
  }
  fetched_ = std::max(fetched_, readable);
}

MemoryNodeSum::MemoryNodeSum(const BoundUnit& unit, MemoryNodes nodes, int local_rank,
                             UnitProgress progress)
    : unit_(unit),
      nodes_(nodes),
      own_(local_rank / nodes.ranks),
      index_(local_rank % nodes.ranks),
      slice_(slice_range({0, unit.unit.bytes}, index_, nodes.ranks)),
      progress_(progress) {}

bool MemoryNodeSum::poll() {
  while (sum_step() || take_step()) {
  }
  return taken_ == slice_.bytes;
}

Range MemoryNodeSum::next_step(std::size_t done) const {
  return {slice_.begin + done, std::min(kStep, slice_.bytes - done)};
}

/// False: it has summed all, or what the memory node before has is not there yet.
bool MemoryNodeSum::sum_step() {
  const Range step = next_step(summed_);
  if (step.bytes == 0) return false;
  const std::size_t end = summed_ + step.bytes;
  if (own_ > 0 && progress_.readable(rank_of(own_ - 1), unit_.number) < end) return false;
  for_each_run(unit_.unit, step, [&](const Run& run) {
    Places inputs, outputs;
    if (own_ > 0) inputs.add(place_of(unit_, run, rank_of(own_ - 1)));
    for (int i = 0; i < nodes_.ranks; ++i) {
      std::byte* const of_rank = place_of(unit_, run, own_ * nodes_.ranks + i);
      inputs.add(of_rank);
      if (is_last() || i == index_) outputs.add(of_rank);
    }
    reduce(unit_.unit.type, op_in_node(unit_.unit), inputs.inputs(), outputs.outputs(),
           run.range.bytes / size_of(unit_.unit.type), {.post = is_last() ? unit_.scale : 1.0});
  });
  summed_ = end;
  if (is_last()) taken_ = end;
  if (summed_ == slice_.bytes) {
    progress_.leave_all(unit_.number);
  } else {
    progress_.leave(unit_.number, summed_);
  }
  return true;
}

/// False: it has taken all, or the next part of the result is not there yet.
bool MemoryNodeSum::take_step() {
  const Range step = next_step(taken_);
  if (step.bytes == 0) return false;
  const int source = rank_of(nodes_.count - 1);
  if (progress_.readable(source, unit_.number) < taken_ + step.bytes) return false;
  for_each_run(unit_.unit, step, [&](const Run& run) {
    Places outputs;
    for (int i = 0; i < nodes_.ranks; ++i) {
      outputs.add(place_of(unit_, run, own_ * nodes_.ranks + i));
    }
    copy_to_all(place_of(unit_, run, source), outputs.outputs(), run.range.bytes);
  });
  taken_ += step.bytes;
  return true;
}

}  // namespace hora::internal
