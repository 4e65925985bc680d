#include "frameworks/torch/optimizer/bucket_tuner.h"

#include <algorithm>

#include "core/base/checked.h"

namespace hora::internal {

BucketTuner::BucketTuner(const std::vector<BucketForm>& forms) {
  take(forms);
}

void BucketTuner::try_instead(const std::vector<BucketForm>& forms) {
  candidates_.clear();
  take(forms);
}

void BucketTuner::take(const std::vector<BucketForm>& forms) {
  for (const BucketForm& form : forms) candidates_.push_back({form, {}, {}, false});
  order_ = order_of_round();
  if (candidates_.size() == 1) done_ = true;
}

std::vector<BucketForm> BucketTuner::forms() const {
  std::vector<BucketForm> forms;
  for (const Candidate& candidate : candidates_) forms.push_back(candidate.form);
  return forms;
}

std::vector<std::size_t> BucketTuner::order_of_round() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (!candidates_[i].out) order.push_back(i);
  }
  if (round_ % 2 == 1) std::reverse(order.begin(), order.end());
  return order;
}

const BucketForm& BucketTuner::form() const {
  const std::size_t candidate = done_ ? choice_ : warm_ ? order_[block_] : 0;
  return candidates_[candidate].form;
}

void BucketTuner::note(double seconds) {
  steps_ += 1;
  step_ += 1;
  if (!warm_) {
    warm_ = step_ == warm_up_steps;
    if (warm_) step_ = 0;
    return;
  }
  if (step_ > 1) candidates_[order_[block_]].steps.push_back(seconds);
  if (step_ == block_steps) end_block();
}

void BucketTuner::end_block() {
  Candidate& candidate = candidates_[order_[block_]];
  candidate.blocks.push_back(*std::min_element(
      candidate.steps.end() - static_cast<std::ptrdiff_t>(block_steps - 1), candidate.steps.end()));
  step_ = 0;
  block_ += 1;
  if (block_ == order_.size()) end_round();
}

void BucketTuner::end_round() {
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    if (candidate.out) continue;
    const auto of_rounds = gains(candidate);
    const auto lost = std::ranges::count_if(of_rounds, [](double gain) { return gain <= 0; });
    candidate.out = 2 * lost > std::ssize(of_rounds);
  }
  if (round_ == 0) keep_the_best();
  round_ += 1;
  block_ = 0;
  order_ = order_of_round();
  if (order_.size() == 1 || steps_ + block_steps * order_.size() > most_steps) choose();
}

/// Those that are left take turns in all other rounds.
void BucketTuner::keep_the_best() {
  std::vector<std::size_t> left;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    if (!candidates_[i].out) left.push_back(i);
  }
  std::ranges::sort(left, {}, [this](std::size_t i) { return candidates_[i].blocks.back(); });
  const std::size_t forms = (most_steps - steps_) / (block_steps * (least_rounds - 1));
  for (std::size_t i = forms - 1; i < left.size(); ++i) candidates_[left[i]].out = true;
}

std::vector<double> BucketTuner::gains(const Candidate& candidate) const {
  std::vector<double> gains;
  for (std::size_t round = 0; round < candidate.blocks.size(); ++round) {
    gains.push_back(1 - candidate.blocks[round] / candidates_.front().blocks[round]);
  }
  return gains;
}

bool BucketTuner::is_clear(const Candidate& candidate) const {
  const std::vector<double>& usual = candidates_.front().steps;
  std::ptrdiff_t shorter = 0;
  for (const double step : candidate.steps) {
    shorter += std::ranges::count_if(usual, [&](double other) { return step < other; });
  }
  const auto pairs = static_cast<double>(candidate.steps.size() * usual.size());
  return static_cast<double>(shorter) >= clear_share * pairs;
}

void BucketTuner::choose() {
  done_ = true;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    if (candidate.out || !is_clear(candidate)) continue;
    const double gain = median(gains(candidate));
    if (gain < least_gain || gain <= gain_) continue;
    choice_ = i;
    gain_ = gain;
  }
}

void BucketTuner::give_up() {
  done_ = true;
  choice_ = 0;
  gain_ = 0;
}

std::vector<BucketForm> bucket_forms_to_try(const BucketForm& usual) {
  std::vector<BucketForm> forms{usual,
                                {std::max<std::size_t>(usual.bytes / 4, 1), usual.compressed},
                                {usual.bytes * 4, usual.compressed}};
  if (usual.compressed) forms.push_back({usual.bytes, false});
  return forms;
}

}  // namespace hora::internal
