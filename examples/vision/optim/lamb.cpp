#include "examples/vision/optim/lamb.h"

#include <torch/optim/serialize.h>

#include <cmath>
#include <memory>
#include <utility>

#include "examples/vision/optim/options.h"
#include "examples/vision/optim/parameter_state.h"

namespace vision {
namespace {

void check(const LAMBOptions& options) {
  check_option("LAMB", "lr", options.lr() >= 0, options.lr(), "0 or more");
  check_option("LAMB", "beta1", options.beta1() >= 0 && options.beta1() < 1, options.beta1(),
               "0 to below 1");
  check_option("LAMB", "beta2", options.beta2() >= 0 && options.beta2() < 1, options.beta2(),
               "0 to below 1");
  check_option("LAMB", "eps", options.eps() > 0, options.eps(), "more than 0");
  check_option("LAMB", "weight_decay", options.weight_decay() >= 0, options.weight_decay(),
               "0 or more");
}

/// u of the header, after the moments have taken the gradient in.
torch::Tensor update_of(const LAMBOptions& options, LAMBParamState& state,
                        const torch::Tensor& weight, const torch::Tensor& gradient) {
  if (state.step() == 0) {
    state.exp_avg(torch::zeros_like(weight));
    state.exp_avg_sq(torch::zeros_like(weight));
  }
  state.step(state.step() + 1);
  state.exp_avg().mul_(options.beta1()).add_(gradient, 1 - options.beta1());
  state.exp_avg_sq().mul_(options.beta2()).addcmul_(gradient, gradient, 1 - options.beta2());
  const auto steps = static_cast<double>(state.step());
  const torch::Tensor root = (state.exp_avg_sq() / (1 - std::pow(options.beta2(), steps))).sqrt_();
  torch::Tensor update = state.exp_avg() / root.add_(options.eps());
  update.div_(1 - std::pow(options.beta1(), steps));
  return update.add_(weight, options.weight_decay());
}

}  // namespace

void LAMBOptions::serialize(torch::serialize::OutputArchive& archive) const {
  write_option(archive, "lr", lr());
  write_option(archive, "beta1", beta1());
  write_option(archive, "beta2", beta2());
  write_option(archive, "eps", eps());
  write_option(archive, "weight_decay", weight_decay());
  write_option(archive, "adapt", adapt());
}

void LAMBOptions::serialize(torch::serialize::InputArchive& archive) {
  lr(read_option(archive, "lr").toDouble());
  beta1(read_option(archive, "beta1").toDouble());
  beta2(read_option(archive, "beta2").toDouble());
  eps(read_option(archive, "eps").toDouble());
  weight_decay(read_option(archive, "weight_decay").toDouble());
  adapt(read_option(archive, "adapt").toBool());
}

void LAMBParamState::serialize(torch::serialize::OutputArchive& archive) const {
  write_option(archive, "step", step());
  archive.write("exp_avg", exp_avg(), /*is_buffer=*/true);
  archive.write("exp_avg_sq", exp_avg_sq(), /*is_buffer=*/true);
}

void LAMBParamState::serialize(torch::serialize::InputArchive& archive) {
  step(read_option(archive, "step").toInt());
  archive.read("exp_avg", exp_avg_, /*is_buffer=*/true);
  archive.read("exp_avg_sq", exp_avg_sq_, /*is_buffer=*/true);
}

LAMB::LAMB(std::vector<torch::optim::OptimizerParamGroup> groups, const LAMBOptions& defaults)
    : Optimizer(std::move(groups), std::make_unique<LAMBOptions>(defaults)) {
  check(defaults);
  for (const auto& group : param_groups()) {
    check(static_cast<const LAMBOptions&>(group.options()));
  }
}

LAMB::LAMB(std::vector<torch::Tensor> parameters, const LAMBOptions& defaults)
    : LAMB({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

torch::Tensor LAMB::step(LossClosure closure) {
  const auto update_weight = [&](const LAMBOptions& options, torch::Tensor& weight,
                                 const torch::Tensor& gradient) {
    auto& state = state_of<LAMBParamState>(*this, weight);
    torch::Tensor update = update_of(options, state, weight, gradient);
    if (options.adapt()) {
      check_whole(weight, "LAMB");
      const torch::Tensor weight_norm = weight.norm();
      const torch::Tensor update_norm = update.norm();
      update.mul_(trust_ratio(weight_norm, update_norm, weight_norm / update_norm));
    }
    weight.sub_(update, options.lr());
  };
  return step_parameters<LAMBOptions>(*this, closure, update_weight);
}

void LAMB::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LAMBParamState, LAMBOptions>(archive, *this);
}

void LAMB::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LAMBParamState, LAMBOptions>(archive, *this);
}

}  // namespace vision
