#include "frameworks/torch/optimizer/backward_update.h"

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

}  // namespace hora::internal
