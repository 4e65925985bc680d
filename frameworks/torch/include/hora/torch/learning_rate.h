/// Learning rates of many ranks: linear scaling, warm-up, decay by steps or a cosine.
///
///     const double peak = hora::linear_scaling(0.0125, 32 * world.size(), 32);
///     const hora::LearningRateSchedule schedule(
///         {.rate = peak, .warmup_start = 0.0125, .warmup_epochs = 5}, sampler.steps());
///     for (std::int64_t step = 0; step < steps; ++step) {
///       schedule.apply(optimizer, step);
///       train_one_step(optimizer);
///     }
#pragma once

#include <hora/export.h>

#include <cstdint>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace HORA_EXPORT hora {

class DistributedOptimizer;

/// Returns base * batch / reference_batch, `batch` of all ranks: Goyal et al., arXiv 1706.02677,
/// section 2.1. Not with ReduceOp::sum, which scales already. Throws Error(invalid_argument) for
/// batches not above 0.
double linear_scaling(double base, double batch, double reference_batch);

enum class LearningRateDecay : std::uint8_t {
  none,
  /// Multiplied by decay_factor every decay_epochs from epoch 0: Goyal et al., section 5.1.
  step,
  /// Half a cosine from the end of the warm-up to `epochs`: Loshchilov and Hutter, arXiv
  /// 1608.03983, equation 5, without restarts.
  cosine,
};

struct LearningRateOptions {
  double rate = 0.1;           ///< after the warm-up, >= 0
  double warmup_start = 0.0;   ///< of the first step, from 0 to `rate`; Goyal's: the unscaled rate
  double warmup_epochs = 0.0;  ///< >= 0; 0: begins with `rate`. May be a fraction
  LearningRateDecay decay = LearningRateDecay::step;
  double decay_epochs = 30.0;  ///< of step, > 0
  double decay_factor = 0.1;   ///< of step, within (0, 1]
  double epochs = 90.0;        ///< of cosine: its end, > warmup_epochs
  double final_rate = 0.0;     ///< of cosine: from `epochs` on; from 0 to `rate`
};

/// Returns the rate after `epoch` >= 0 epochs, a fraction; grows linearly in the warm-up. Does not
/// check the options: LearningRateSchedule does.
double learning_rate(const LearningRateOptions& options, double epoch) noexcept;
/// Returns the rate in step `step`, counted from 0 over all epochs.
double learning_rate(const LearningRateOptions& options, std::int64_t step,
                     std::int64_t steps_per_epoch) noexcept;

/// Sets rates. Constructor: Error(invalid_argument) for options out of range, and steps_per_epoch
/// below 1. Thread rule: any thread, as for the optimizer.
class LearningRateSchedule {
 public:
  LearningRateSchedule(const LearningRateOptions& options, std::int64_t steps_per_epoch);

  double rate(std::int64_t step) const noexcept;
  /// Gives all groups the rate of `step`, before it, on every rank, and returns it.
  double apply(torch::optim::Optimizer& optimizer, std::int64_t step) const;
  double apply(DistributedOptimizer& optimizer, std::int64_t step) const;

 private:
  LearningRateOptions options_;
  std::int64_t steps_per_epoch_;
};

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

}  // namespace hora
