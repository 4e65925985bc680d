// In which step this rank is, and whether all ranks are in it and end it alike.
#include <string>
#include <utility>

#include "frameworks/torch/optimizer/gradient_averager.h"

namespace hora {

void GradientAverager::check_in_step() const {
  const LockGuard lock(mutex_);
  if (different_steps_) throw *different_steps_;
}

void GradientAverager::note_step() {
  const LockGuard lock(mutex_);
  steps_.note_step();
}

void GradientAverager::note_zero_grad() {
  const LockGuard lock(mutex_);
  steps_.note_zero_grad();
}

void GradientAverager::restart_steps() {
  const LockGuard lock(mutex_);
  steps_.restart();
}

void GradientAverager::naming_step(const std::function<void()>& action) const {
  try {
    action();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::shut_down || peers_.context.is_shut_down()) throw;
    // A rank that has departed has ended as many rounds as this one, and takes no part in this one.
    throw Error(ErrorCode::shut_down,
                std::string(error.what()) + ". This rank is in step " +
                    std::to_string(steps_.calls_before().steps + 1) +
                    ", which that rank has not reached: every rank must make as many steps; one "
                    "whose data end earlier calls DistributedOptimizer::join()",
                error.rank(), error.tensor());
  }
}

void GradientAverager::check_one_step() {
  if (presence_ ? presence_->in_one_step() : buckets_->in_one_step().value()) return;
  if (ends_) {  // all that some ranks have sent already is sent by all
    ends_->tell(RoundEnd::discard);
    ends_->agree();
  }
  refuse_steps(steps_.calls_before());
}

void GradientAverager::refuse_steps(const StepCalls& calls) {
  steps_exchange_.tell(calls);
  different_steps_ = steps_exchange_.error();
  throw *different_steps_;
}

void GradientAverager::leave() {
  const LockGuard lock(mutex_);
  steps_exchange_.tell(steps_.calls());  // for those who find steps to differ
}

bool GradientAverager::unsettled() const {
  const LockGuard lock(mutex_);
  return unsettled_;
}

bool GradientAverager::tell_end(RoundEnd end) {
  const LockGuard lock(mutex_);
  if (!unsettled_) return true;
  ends_->tell(end);
  return ends_->ready();
}

void GradientAverager::settle(RoundEnd end) {
  const LockGuard lock(mutex_);
  if (!std::exchange(unsettled_, false)) return;
  ends_->tell(end);
  bool agreed = false;
  naming_step([&] { agreed = ends_->agree(); });
  if (agreed) return;
  StepCalls calls = steps_.calls();
  if (end == RoundEnd::step) calls.steps += 1;
  refuse_steps(calls);
}

}  // namespace hora
