#include "examples/vision/train/optimizers.h"

#include <hora/torch/gradient_hook.h>
#include <hora/torch/optim.h>

#include <cmath>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace vision {
namespace {

using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> in_groups(const OptimizerSettings& settings,
                                                   const NamedParameters& named_parameters,
                                                   Options options) {
  options.weight_decay(settings.weight_decay);
  if (settings.decay_all) {
    return std::make_unique<Optimizer>(named_parameters.values(), options);
  }
  std::vector<torch::Tensor> decayed;
  std::vector<torch::Tensor> others;
  for (const auto& parameter : named_parameters) {
    (parameter.value().dim() > 1 ? decayed : others).push_back(parameter.value());
  }
  auto of_others = std::make_unique<Options>(options);
  of_others->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decayed), std::make_unique<Options>(options));
  groups.emplace_back(std::move(others), std::move(of_others));
  return std::make_unique<Optimizer>(std::move(groups), options);
}

/// Whole steps, where a share of all epochs is meant; the sum keeps 24 / 6 from becoming 3.
double warmup_steps(const TrainingOptions& options, std::int64_t steps_per_epoch) {
  const auto steps = static_cast<double>(steps_per_epoch);
  if (options.schedule.warmup_epochs) return *options.schedule.warmup_epochs * steps;
  return std::floor(options.schedule.warmup_share * options.epochs * steps + 1e-6);
}

hora::LearningRateDecay decay_of(Decay decay) {
  if (decay == Decay::constant) return hora::LearningRateDecay::none;
  return decay == Decay::step ? hora::LearningRateDecay::step : hora::LearningRateDecay::cosine;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerSettings& settings,
                                                        const NamedParameters& named_parameters) {
  const auto betas = std::make_tuple(settings.momentum, 0.999);
  if (settings.name == "adam") {
    return in_groups<hora::optim::Adam>(
        settings, named_parameters, torch::optim::AdamOptions(settings.learning_rate).betas(betas));
  }
  if (settings.name == "adamw") {
    return in_groups<hora::optim::AdamW>(
        settings, named_parameters,
        torch::optim::AdamWOptions(settings.learning_rate).betas(betas));
  }
  if (settings.name != "sgd") {
    throw std::invalid_argument("there is no optimizer '" + settings.name +
                                "'; expected sgd, adam or adamw");
  }
  return in_groups<hora::optim::SGD>(settings, named_parameters,
                                     torch::optim::SGDOptions(settings.learning_rate)
                                         .momentum(settings.momentum)
                                         .nesterov(settings.nesterov));
}

hora::LearningRateOptions learning_rate_options(const TrainingOptions& options,
                                                std::int64_t images_a_step,
                                                std::int64_t steps_per_epoch) {
  const ScheduleOptions& schedule = options.schedule;
  const double base = options.optimizer.learning_rate;
  const int base_batch = schedule.base_batch > 0 ? schedule.base_batch : options.data.batch;
  const double highest =
      schedule.scale ? hora::linear_scaling(base, static_cast<double>(images_a_step), base_batch)
                     : base;
  const double growing = warmup_steps(options, steps_per_epoch);
  // Scaled down, too, where a step has fewer images than base_batch.
  const double start = schedule.scale ? std::fmin(base, highest) : base / (growing + 1);
  return {.rate = highest,
          .warmup_start = start,
          .warmup_epochs = growing / static_cast<double>(steps_per_epoch),
          .decay = decay_of(schedule.decay),
          .decay_epochs = schedule.step_epochs,
          .decay_factor = schedule.factor,
          .epochs = static_cast<double>(options.epochs)};
}

hora::DistributedOptimizerOptions distributed_options(const DistributionOptions& options) {
  hora::DistributedOptimizerOptions result{.backward_passes_per_step = options.accumulate};
  if (options.zero) result.sharding = hora::Sharding::state;
  if (options.fused_update) result.sharding = hora::Sharding::fused;
  switch (options.compression) {
    case GradientCompression::none:
      break;
    case GradientCompression::float16:
      result.compression = hora::Compression::float16;
      break;
    case GradientCompression::bfloat16:
      result.compression = hora::Compression::bfloat16;
      break;
    case GradientCompression::top_k:
      result.hook = std::make_shared<hora::TopK>();
      break;
    case GradientCompression::power_sgd:
      result.hook = std::make_shared<hora::PowerSgd>();
      break;
  }
  return result;
}

hora::FiniteCheckOptions finite_check_options(const DistributionOptions& options, bool scaled) {
  using Policy = hora::NonFinitePolicy;
  const Policy policy = options.non_finite == NonFinite::raise  ? Policy::raise
                        : options.non_finite == NonFinite::skip ? Policy::skip
                                                                : Policy::ignore;
  return {.policy = policy, .gradients = !scaled};
}

}  // namespace vision
