#include "ops/hierarchy/memory_group.h"

#include <array>

#include "core/board/board.h"
#include "ops/local/kernels.h"

namespace hora {
namespace {

/// Addresses of one run of a tensor, by local rank.
class Addresses {
 public:
  Addresses(const BoundUnit& unit, const Run& run) : count_(unit.local_size) {
    for (int r = 0; r < count_; ++r) {
      data_[static_cast<std::size_t>(r)] = unit.tensor(run.tensor, r) + run.range.begin;
    }
  }
  std::byte* operator[](int r) const { return data_[static_cast<std::size_t>(r)]; }
  std::span<std::byte* const> outputs() const { return {data_.data(), size()}; }
  std::span<const std::byte* const> inputs() const { return {data_.data(), size()}; }

 private:
  std::size_t size() const { return static_cast<std::size_t>(count_); }
  std::array<std::byte*, kMaxLocalSize> data_;
  int count_;
};

std::size_t elements(const BoundUnit& unit, const Run& run) {
  return run.range.bytes / size_of(unit.unit.type);
}

/// From the root to everybody else.
void spread_from(int root, const Addresses& memory, int local_size, std::size_t bytes) {
  std::array<std::byte*, kMaxLocalSize> others;
  std::size_t count = 0;
  for (int r = 0; r < local_size; ++r) {
    if (r != root) others[count++] = memory[r];
  }
  if (count > 0) spread(memory[root], {others.data(), count}, bytes);
}

}  // namespace

std::byte* MemoryGroup::staging(std::size_t slot, std::size_t bytes) {
  if (slot >= staging_.size()) staging_.resize(slot + 1);
  auto& block = staging_[slot];
  if (block.size() < bytes + kAlignment) block.resize(bytes + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(block.data());
  return block.data() + (align_up(address) - address);
}

Completion MemoryGroup::run(const BoundUnit& unit) {
  const Range mine = slice_range({0, unit.unit.bytes}, local_rank_, local_size_);
  for (const Run& run : runs(unit.unit, mine)) {
    const Addresses memory(unit, run);
    if (unit.unit.kind == OperationKind::broadcast) {
      spread_from(unit.root_local, memory, local_size_, run.range.bytes);
    } else {
      reduce(unit.unit.type, unit.unit.op, memory.inputs(), memory.outputs(), elements(unit, run),
             {.pre = unit.unit.prescale, .post = unit.scale});
    }
  }
  return {};
}

Completion MemoryGroup::reduce_scatter(const ChunkPart& part) {
  if (!part.has_input) return {};
  const BoundUnit& unit = part.unit;
  std::byte* const staged = staging(part.slot, part.slice.bytes);
  for (const Run& run : runs(unit.unit, part.slice)) {
    const Addresses memory(unit, run);
    std::byte* const out = staged + run.offset;
    if (unit.unit.kind == OperationKind::broadcast) {
      spread(memory[unit.root_local], {&out, 1}, run.range.bytes);
    } else {
      reduce(unit.unit.type, unit.unit.op, memory.inputs(), {&out, 1}, elements(unit, run),
             {.pre = unit.unit.prescale});
    }
  }
  return {};
}

Completion MemoryGroup::all_gather(const ChunkPart& part) {
  const std::byte* const staged = staging(part.slot, part.slice.bytes);
  for (const Run& run : runs(part.unit.unit, part.slice)) {
    const Addresses memory(part.unit, run);
    spread(staged + run.offset, memory.outputs(), run.range.bytes);
  }
  return {};
}

}  // namespace hora
