#include "examples/vision/optim/optimizers.h"

#include <hora/torch/optim.h>

#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "examples/vision/optim/lamb.h"
#include "examples/vision/optim/lars.h"
#include "examples/vision/optim/parameter_groups.h"

namespace vision {
namespace {

using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;

void leave_rate_alone(LARSOptions& options) {
  options.adapt(false);
}
void leave_rate_alone(LAMBOptions& options) {
  options.adapt(false);
}
template <class Options>
void leave_rate_alone(Options&) {}

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> in_groups(const OptimizerSettings& settings,
                                                   const NamedParameters& named_parameters,
                                                   const Options& options) {
  if (settings.decay_all) {
    return std::make_unique<Optimizer>(named_parameters.values(), options);
  }
  auto of_others = std::make_unique<Options>(options);
  of_others->weight_decay(0);
  leave_rate_alone(*of_others);
  ParametersByDecay split = split_by_decay(named_parameters);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(split.decayed), std::make_unique<Options>(options));
  groups.emplace_back(std::move(split.not_decayed), std::move(of_others));
  return std::make_unique<Optimizer>(std::move(groups), options);
}

std::unique_ptr<torch::optim::Optimizer> make_sgd(const OptimizerSettings& settings,
                                                  const NamedParameters& parameters) {
  return in_groups<hora::optim::SGD>(settings, parameters,
                                     torch::optim::SGDOptions(settings.learning_rate)
                                         .momentum(settings.momentum)
                                         .weight_decay(settings.weight_decay)
                                         .nesterov(settings.nesterov));
}

template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make_adam(const OptimizerSettings& settings,
                                                   const NamedParameters& parameters) {
  return in_groups<Optimizer>(settings, parameters,
                              Options(settings.learning_rate)
                                  .betas(std::make_tuple(settings.momentum, 0.999))
                                  .weight_decay(settings.weight_decay));
}

std::unique_ptr<torch::optim::Optimizer> make_lars(const OptimizerSettings& settings,
                                                   const NamedParameters& parameters) {
  return in_groups<LARS>(settings, parameters,
                         LARSOptions(settings.learning_rate)
                             .momentum(settings.momentum)
                             .weight_decay(settings.weight_decay));
}

std::unique_ptr<torch::optim::Optimizer> make_lamb(const OptimizerSettings& settings,
                                                   const NamedParameters& parameters) {
  return in_groups<LAMB>(settings, parameters,
                         LAMBOptions(settings.learning_rate)
                             .beta1(settings.momentum)
                             .weight_decay(settings.weight_decay));
}

using Make = std::unique_ptr<torch::optim::Optimizer> (*)(const OptimizerSettings&,
                                                          const NamedParameters&);
const std::map<std::string_view, Make> makers{
    {"sgd", make_sgd},
    {"lars", make_lars},
    {"lamb", make_lamb},
    {"adam", make_adam<hora::optim::Adam, torch::optim::AdamOptions>},
    {"adamw", make_adam<hora::optim::AdamW, torch::optim::AdamWOptions>},
};

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerSettings& settings,
                                                        const NamedParameters& named_parameters) {
  return makers.at(optimizer_kind(settings.name).name)(settings, named_parameters);
}

}  // namespace vision
