#include <hora/grad_scaler.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "frameworks/torch/loss_scale.h"

namespace hora {
namespace {

/// Divides the gradients of one device and type; true if all of them were finite.
bool unscale(std::vector<torch::Tensor>& gradients, double factor) {
  const torch::NoGradGuard no_grad;
  if (gradients.front().is_cuda()) {
    const auto options = torch::TensorOptions(gradients.front().device()).dtype(torch::kFloat32);
    torch::Tensor found = torch::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found,
                                                   torch::full({1}, factor, options));
    return found.item<float>() == 0.0F;
  }
  bool finite = true;
  for (torch::Tensor& gradient : gradients) {
    gradient.mul_(factor);
    // A sum is finite only where all its terms are; where it overflows, the terms are looked at.
    finite = finite && (std::isfinite(gradient.sum().item<double>()) ||
                        torch::isfinite(gradient).all().item<bool>());
  }
  return finite;
}

}  // namespace

struct GradScaler::State {
  GradScalerOptions options;
  LossScale scale;
  bool unscaled = false;
  bool finite = true;
};

GradScaler::GradScaler(const GradScalerOptions& options) : state_(std::make_unique<State>()) {
  check_options(options);
  state_->options = options;
  state_->scale.scale = options.enabled ? options.initial_scale : 1.0;
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  return state_->options.enabled ? loss * state_->scale.scale : loss;
}

void GradScaler::unscale_(DistributedOptimizer& optimizer) {
  if (!state_->options.enabled) return;
  if (state_->unscaled) {
    throw Error(ErrorCode::invalid_use,
                "GradScaler: the gradients have been divided by the scale already; call update() "
                "after each step");
  }
  optimizer.synchronize();
  // By type: averaged parameters are all on one device.
  std::map<torch::ScalarType, std::vector<torch::Tensor>> groups;
  for (auto& group : optimizer.wrapped().param_groups()) {
    for (auto& parameter : group.params()) {
      torch::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      groups[gradient.scalar_type()].push_back(gradient);
    }
  }
  state_->finite = true;
  for (auto& [type, gradients] : groups) {
    state_->finite = unscale(gradients, 1.0 / state_->scale.scale) && state_->finite;
  }
  state_->unscaled = true;
}

bool GradScaler::step(DistributedOptimizer& optimizer) {
  if (!state_->unscaled) unscale_(optimizer);
  const bool finite = state_->finite;
  if (finite) optimizer.step();
  return finite;
}

void GradScaler::update() {
  if (!state_->options.enabled) return;
  state_->scale = next_scale(state_->scale, state_->options, state_->finite);
  state_->unscaled = false;
  state_->finite = true;
}

double GradScaler::current_scale() const {
  return state_->scale.scale;
}

}  // namespace hora
