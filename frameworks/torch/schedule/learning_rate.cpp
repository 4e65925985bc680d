#include <hora/error.h>
#include <hora/torch/learning_rate.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace hora {
namespace {

double decayed(const LearningRateOptions& options, double epoch) noexcept {
  if (options.decay == LearningRateDecay::step) {
    return options.rate * std::pow(options.decay_factor, std::floor(epoch / options.decay_epochs));
  }
  if (options.decay == LearningRateDecay::cosine) {
    const double done = std::clamp(
        (epoch - options.warmup_epochs) / (options.epochs - options.warmup_epochs), 0.0, 1.0);
    return options.final_rate +
           (options.rate - options.final_rate) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  }
  return options.rate;
}

}  // namespace

double linear_scaling(double base, double batch, double reference_batch) {
  if (!(batch > 0 && reference_batch > 0)) {
    throw Error(ErrorCode::invalid_argument,
                "linear_scaling: batch is " + std::to_string(batch) + " and reference_batch " +
                    std::to_string(reference_batch) + "; expected both above 0");
  }
  return base * batch / reference_batch;
}

double learning_rate(const LearningRateOptions& options, double epoch) noexcept {
  if (epoch >= options.warmup_epochs) return decayed(options, epoch);
  return options.warmup_start +
         (options.rate - options.warmup_start) * (epoch / options.warmup_epochs);
}

double learning_rate(const LearningRateOptions& options, std::int64_t step,
                     std::int64_t steps_per_epoch) noexcept {
  return learning_rate(options, static_cast<double>(step) / static_cast<double>(steps_per_epoch));
}

}  // namespace hora
