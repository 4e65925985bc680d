#include "ops/hierarchy/memory_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/control_block/tensor_id.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// Addresses of one run of a tensor on the local ranks that have it, which joined ranks do not.
class Addresses {
 public:
  Addresses(const BoundUnit& unit, const Run& run) : unit_(unit), run_(run) {
    for (int r = 0; r < unit.local_size; ++r) {
      if (unit.tensor(run.tensor, r)) data_[count_++] = of(r);
    }
  }
  std::byte* of(int r) const { return unit_.tensor(run_.tensor, r) + run_.range.begin; }
  std::span<std::byte* const> outputs() const { return {data_.data(), count_}; }
  std::span<const std::byte* const> inputs() const { return {data_.data(), count_}; }

 private:
  const BoundUnit& unit_;
  const Run& run_;
  std::array<std::byte*, kMaxLocalSize> data_;
  std::size_t count_ = 0;
};

/// Of one rank, whose memory it stays in.
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

}  // namespace

ReduceOp op_in_node(const Unit& unit) {
  return unit.op == ReduceOp::adasum ? ReduceOp::sum : unit.op;
}

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
    const Addresses memory(unit, run);
    if (unit.unit.kind == OperationKind::broadcast) {
      spread_to_others(memory.of(unit.root_local), memory.outputs(), run.range.bytes);
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
    const Addresses memory(unit, run);
    std::byte* const out = staged + run.offset;
    if (unit.unit.kind == OperationKind::broadcast) {
      const std::byte* const in = memory.of(unit.root_local);
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
    spread_to_others(staged + run.offset, Addresses(part.unit, run).outputs(), run.range.bytes);
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

}  // namespace hora::internal
