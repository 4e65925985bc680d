// A round of the averager that the pass which updates takes part in (fused_update.h).
#include <cstddef>

#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/optimizer/gradient_placeholder.h"

namespace hora::internal {

void GradientAverager::answer(bool updates) {
  const LockGuard lock(mutex_);
  naming_step([&] { answer_once(updates); });
}

bool GradientAverager::answered() const {
  const LockGuard lock(mutex_);
  return answer_.has_value();
}

bool GradientAverager::answer_once(bool updates) {
  if (!answer_) {
    answer_ = updates;
    options_.buckets.averaging.fused->answer(updates);
  }
  return *answer_;
}

bool GradientAverager::submitted(std::size_t bucket) const {
  const LockGuard lock(mutex_);
  return buckets_->submitted(bucket);
}

bool GradientAverager::ready(std::size_t bucket) {
  const LockGuard lock(mutex_);
  FusedRounds& fused = *options_.buckets.averaging.fused;
  if (!answer_ || !fused.ready()) return false;
  bool come = false;
  naming_step([&] {
    fused.agree();
    come = fused.updates() && buckets_->has_come(bucket);
  });
  if (!come) return false;
  for (const GradientPlace& place : buckets_->layout(bucket).places) {
    present_[place.gradient] = buckets_->present_anywhere(place.gradient).value();
  }
  return true;
}

void GradientAverager::release(std::size_t bucket) {
  const LockGuard lock(mutex_);
  held_bytes_ -= buckets_->release(bucket);
  for (const GradientPlace& place : buckets_->layout(bucket).places) {
    const at::Tensor& parameter = parameters_[place.gradient].tensor;
    parameter.mutable_grad().reset();
    if (present_[place.gradient]) put_placeholder(parameter);
  }
}

bool GradientAverager::updates() const {
  const LockGuard lock(mutex_);
  return options_.buckets.averaging.fused && options_.buckets.averaging.fused->updates();
}

void GradientAverager::end_update() {
  const LockGuard lock(mutex_);
  buckets_->give_back_gradients();
}

}  // namespace hora::internal
