#include "ops/hierarchy/memory_node_sum.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/control_block/tensor_id.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// Short enough that what a few ranks of a memory node bring for it fits their core's cache, and
/// long enough that its announcement costs nothing beside it.
constexpr std::size_t kStep = 4 * UnitProgress::kStep;

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

}  // namespace

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
    const auto place = [&](int rank) { return unit_.tensor(run.tensor, rank) + run.range.begin; };
    Places inputs, outputs;
    if (own_ > 0) inputs.add(place(rank_of(own_ - 1)));
    for (int i = 0; i < nodes_.ranks; ++i) {
      std::byte* const of_rank = place(own_ * nodes_.ranks + i);
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
      outputs.add(unit_.tensor(run.tensor, own_ * nodes_.ranks + i) + run.range.begin);
    }
    copy_to_all(unit_.tensor(run.tensor, source) + run.range.begin, outputs.outputs(),
                run.range.bytes);
  });
  taken_ += step.bytes;
  return true;
}

}  // namespace hora::internal
