#include "examples/vision/optim/lars.h"

#include <torch/optim/serialize.h>

#include <memory>
#include <utility>

#include "examples/vision/optim/options.h"
#include "examples/vision/optim/parameter_state.h"

namespace vision {
namespace {

void check(const LARSOptions& options) {
  check_option("LARS", "lr", options.lr() >= 0, options.lr(), "0 or more");
  check_option("LARS", "momentum", options.momentum() >= 0, options.momentum(), "0 or more");
  check_option("LARS", "weight_decay", options.weight_decay() >= 0, options.weight_decay(),
               "0 or more");
  check_option("LARS", "trust_coefficient", options.trust_coefficient() > 0,
               options.trust_coefficient(), "more than 0");
}

torch::Tensor rate_of(const LARSOptions& options, const torch::Tensor& weight,
                      const torch::Tensor& gradient) {
  const torch::Tensor weight_norm = weight.norm();
  const torch::Tensor gradient_norm = gradient.norm();
  const torch::Tensor ratio = options.trust_coefficient() * weight_norm /
                              (gradient_norm + options.weight_decay() * weight_norm);
  return options.lr() * trust_ratio(weight_norm, gradient_norm, ratio);
}

}  // namespace

void LARSOptions::serialize(torch::serialize::OutputArchive& archive) const {
  write_option(archive, "lr", lr());
  write_option(archive, "momentum", momentum());
  write_option(archive, "weight_decay", weight_decay());
  write_option(archive, "trust_coefficient", trust_coefficient());
  write_option(archive, "adapt", adapt());
}

void LARSOptions::serialize(torch::serialize::InputArchive& archive) {
  lr(read_option(archive, "lr").toDouble());
  momentum(read_option(archive, "momentum").toDouble());
  weight_decay(read_option(archive, "weight_decay").toDouble());
  trust_coefficient(read_option(archive, "trust_coefficient").toDouble());
  adapt(read_option(archive, "adapt").toBool());
}

void LARSParamState::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("momentum_buffer", momentum_buffer(), /*is_buffer=*/true);
}

void LARSParamState::serialize(torch::serialize::InputArchive& archive) {
  archive.read("momentum_buffer", momentum_buffer_, /*is_buffer=*/true);
}

LARS::LARS(std::vector<torch::optim::OptimizerParamGroup> groups, const LARSOptions& defaults)
    : Optimizer(std::move(groups), std::make_unique<LARSOptions>(defaults)) {
  check(defaults);
  for (const auto& group : param_groups()) {
    check(static_cast<const LARSOptions&>(group.options()));
  }
}

LARS::LARS(std::vector<torch::Tensor> parameters, const LARSOptions& defaults)
    : LARS({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

torch::Tensor LARS::step(LossClosure closure) {
  const auto update_weight = [&](const LARSOptions& options, torch::Tensor& weight,
                                 const torch::Tensor& gradient) {
    torch::Tensor update = gradient.add(weight, options.weight_decay());
    if (options.adapt()) {
      check_whole(weight, "LARS");
      update.mul_(rate_of(options, weight, gradient));
    } else {
      update.mul_(options.lr());
    }
    auto& state = state_of<LARSParamState>(*this, weight);
    if (state.momentum_buffer().defined()) {
      state.momentum_buffer().mul_(options.momentum()).add_(update);
    } else {
      state.momentum_buffer(update);
    }
    weight.sub_(state.momentum_buffer());
  };
  return step_parameters<LARSOptions>(*this, closure, update_weight);
}

void LARS::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LARSParamState, LARSOptions>(archive, *this);
}

void LARS::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LARSParamState, LARSOptions>(archive, *this);
}

}  // namespace vision
