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

Completion MemoryGroup::run(const BoundUnit& unit, Range chunk) {
  for (const Run& run : runs(unit.unit, slice_range(chunk, local_rank_, local_size_))) {
    const Addresses memory(unit, run);
    if (unit.unit.kind == OperationKind::broadcast) {
      spread_from(unit.root_local, memory, local_size_, run.range.bytes);
    } else {
      reduce(unit.unit.type, memory.inputs(), memory.outputs(), elements(unit, run), unit.scale);
    }
  }
  return {};
}

Completion MemoryGroup::reduce_scatter(const BoundUnit& unit, Range slice, std::byte* staging) {
  for (const Run& run : runs(unit.unit, slice)) {
    const Addresses memory(unit, run);
    std::byte* const out = staging + run.offset;
    if (unit.unit.kind == OperationKind::broadcast) {
      spread(memory[unit.root_local], {&out, 1}, run.range.bytes);
    } else {
      reduce(unit.unit.type, memory.inputs(), {&out, 1}, elements(unit, run), 1.0);
    }
  }
  return {};
}

Completion MemoryGroup::all_gather(const BoundUnit& unit, Range slice, const std::byte* staging) {
  for (const Run& run : runs(unit.unit, slice)) {
    const Addresses memory(unit, run);
    spread(staging + run.offset, memory.outputs(), run.range.bytes);
  }
  return {};
}

}  // namespace hora
