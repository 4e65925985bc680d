#include "frameworks/torch/optimizer/backward_update.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/api/internals.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {

BackwardUpdate::BackwardUpdate(const Peers& peers, GradientAverager& averager, FusedUpdate& fused)
    : averager_(averager),
      fused_(fused),
      counts_(peers, averager.buckets().name(0) + ".counts", averager.buckets().size()),
      stages_(averager.buckets().size(), Stage::filling) {}

void BackwardUpdate::begin() {
  stages_.assign(stages_.size(), Stage::filling);
  can_run_ = fused_.can_run();
  if (can_run_) fused_.begin();  // before the others know
  averager_.answer(can_run_);
}

void BackwardUpdate::proceed(bool agreed) {
  if (!can_run_) return;
  for (std::size_t bucket = 0; bucket < stages_.size(); ++bucket) {
    if (stages_[bucket] == Stage::filling) give(bucket);
    if (stages_[bucket] == Stage::given && agreed) update(bucket);
    if (stages_[bucket] == Stage::updated) release(bucket);
  }
}

// Peers may write to the parameters while backward goes on. LibTorch then refuses to use a value
// that was saved before: it compares versions.
void BackwardUpdate::give(std::size_t bucket) {
  if (!averager_.submitted(bucket)) return;
  for (const GradientPlace& place : averager_.buckets().layout(bucket).places) {
    note_written(averager_.parameters()[place.gradient].tensor);
  }
  stages_[bucket] = Stage::given;
}

void BackwardUpdate::update(std::size_t bucket) {
  if (!averager_.ready(bucket)) return;
  fused_.run(bucket);
  counts_.note(bucket);
  stages_[bucket] = Stage::updated;
}

void BackwardUpdate::release(std::size_t bucket) {
  if (!counts_.noted_by_all(bucket)) return;
  averager_.release(bucket);
  stages_[bucket] = Stage::released;
}

void BackwardUpdate::end() {
  for (std::size_t bucket = 0; bucket < stages_.size(); ++bucket) {
    if (stages_[bucket] < Stage::updated) counts_.note(bucket);
  }
  stages_.assign(stages_.size(), Stage::filling);
  can_run_ = false;
  fused_.end();  // where a rank has answered no, nothing has been run
}

UpdateCounts::UpdateCounts(const Peers& peers, const std::string& name, std::size_t buckets)
    : memory_(peers.context, buckets * sizeof(std::uint64_t)) {
  std::memset(memory_.data(), 0, memory_.size());  // before others learn where it is
  for (std::byte* address :
       peer_addresses(peers.context, peers.set, name, memory_.data(), memory_.size())) {
    counters_.push_back(reinterpret_cast<std::uint64_t*>(address));
  }
  own_ = counters_[static_cast<std::size_t>(peers.rank_in_set)];
}

void UpdateCounts::note(std::size_t bucket) {
  std::atomic_ref(own_[bucket]).fetch_add(1, std::memory_order_release);
}

bool UpdateCounts::noted_by_all(std::size_t bucket) const {
  const std::uint64_t own = std::atomic_ref(own_[bucket]).load(std::memory_order_relaxed);
  return std::all_of(counters_.begin(), counters_.end(), [&](std::uint64_t* of_rank) {
    return std::atomic_ref(of_rank[bucket]).load(std::memory_order_acquire) >= own;
  });
}

}  // namespace hora::internal
