#include <hora/error.h>
#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/learning_rate.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
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
    refuse_argument("linear_scaling: batch is ", batch, " and reference_batch ", reference_batch,
                    "; expected both above 0");
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

LearningRateSchedule::LearningRateSchedule(const LearningRateOptions& options,
                                           std::int64_t steps_per_epoch)
    : options_(options), steps_per_epoch_(steps_per_epoch) {
  // Written so that a NaN is refused.
  const auto require = [](bool good, const char* name, double value, const char* allowed) {
    if (good) return;
    refuse_argument("LearningRateSchedule: ", name, " is ", value, "; expected ", allowed);
  };
  require(steps_per_epoch >= 1, "steps_per_epoch", static_cast<double>(steps_per_epoch),
          "1 or more");
  require(options.rate >= 0 && std::isfinite(options.rate), "rate", options.rate,
          "0 or more, and finite");
  require(options.warmup_start >= 0 && options.warmup_start <= options.rate, "warmup_start",
          options.warmup_start, "0 up to rate");
  require(options.warmup_epochs >= 0, "warmup_epochs", options.warmup_epochs, "0 or more");
  if (options.decay == LearningRateDecay::step) {
    require(options.decay_epochs > 0, "decay_epochs", options.decay_epochs, "more than 0");
    require(options.decay_factor > 0 && options.decay_factor <= 1, "decay_factor",
            options.decay_factor, "more than 0 and at most 1");
  }
  if (options.decay == LearningRateDecay::cosine) {
    require(options.epochs > options.warmup_epochs, "epochs", options.epochs,
            "more than warmup_epochs");
    require(options.final_rate >= 0 && options.final_rate <= options.rate, "final_rate",
            options.final_rate, "0 up to rate");
  }
}

double LearningRateSchedule::rate(std::int64_t step) const noexcept {
  return learning_rate(options_, step, steps_per_epoch_);
}

double LearningRateSchedule::apply(torch::optim::Optimizer& optimizer, std::int64_t step) const {
  const double now = rate(step);
  set_learning_rate(optimizer, now);
  return now;
}

double LearningRateSchedule::apply(DistributedOptimizer& optimizer, std::int64_t step) const {
  return apply(optimizer.wrapped(), step);
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace hora
