#include "frameworks/torch/optimizer/bucket_tuner.h"

#include <algorithm>

namespace hora::internal {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

BucketTuner::BucketTuner(std::vector<BucketForm> forms) {
  for (const BucketForm& form : forms) candidates_.push_back({form, {}, false});
  order_ = order_of_round();
  if (candidates_.size() == 1) done_ = true;
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
  if (step_ > 1) block_seconds_ += seconds;
  if (step_ == block_steps) end_block();
}

void BucketTuner::end_block() {
  candidates_[order_[block_]].blocks.push_back(block_seconds_ /
                                               static_cast<double>(block_steps - 1));
  block_seconds_ = 0;
  step_ = 0;
  block_ += 1;
  if (block_ == order_.size()) end_round();
}

void BucketTuner::end_round() {
  const double usual = candidates_.front().blocks.back();
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    if (!candidate.out && candidate.blocks.back() >= usual) candidate.out = true;
  }
  if (round_ == 0) keep_the_best();
  round_ += 1;
  block_ = 0;
  order_ = order_of_round();
  if (order_.size() == 1 || round_ == rounds) choose();
}

/// Those that are left take turns in all other rounds.
void BucketTuner::keep_the_best() {
  std::vector<std::size_t> left;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    if (!candidates_[i].out) left.push_back(i);
  }
  std::ranges::sort(left, {}, [this](std::size_t i) { return candidates_[i].blocks.back(); });
  const std::size_t forms = (most_steps - steps_) / (block_steps * (rounds - 1));
  for (std::size_t i = forms - 1; i < left.size(); ++i) candidates_[left[i]].out = true;
}

void BucketTuner::choose() {
  done_ = true;
  const std::vector<double>& usual = candidates_.front().blocks;
  const auto [least, most] = std::minmax_element(usual.begin(), usual.end());
  const double noise = *most / *least - 1;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    if (candidates_[i].out) continue;
    std::vector<double> gains;
    for (std::size_t round = 0; round < usual.size(); ++round) {
      gains.push_back(1 - candidates_[i].blocks[round] / usual[round]);
    }
    const double gain = median(gains);
    if (gain < least_gain || gain <= noise || gain <= gain_) continue;
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
