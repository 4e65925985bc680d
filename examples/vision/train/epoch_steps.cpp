#include "examples/vision/train/epoch_steps.h"

namespace vision {

EpochSteps::EpochSteps(hora::DistributedSampler& sampler, const hora::SamplerPosition& position)
    : sampler_(sampler) {
  if (position.consumed == 0) {
    sampler.set_epoch(position.epoch);
    return;
  }
  sampler.restore(position);
  const std::size_t width =
      sampler.options().batch * static_cast<std::size_t>(sampler.options().size);
  const auto consumed = static_cast<std::size_t>(position.consumed);
  first_ = consumed / width;
  if (consumed % width != 0) return;
  sampler.set_epoch(position.epoch);
  first_of_samples_ = first_;
}

hora::SamplerPosition EpochSteps::after(std::size_t step) const {
  return sampler_.position(step + 1 - (first_ - first_of_samples_));
}

}  // namespace vision
