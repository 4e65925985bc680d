#include <hora/grad_scaler.h>

#include <string>

#include "frameworks/torch/agreement.h"
#include "frameworks/torch/optimizer/loss_scale.h"
#include "frameworks/torch/optimizer/optimizer_implementation.h"

namespace hora {

/// Where a step stands.
enum class Phase { scaled, unscaled, stepped };

struct GradScaler::State {
  State(DistributedOptimizer::Implementation& averaging, const GradScalerOptions& given)
      : optimizer(averaging), options(given) {
    scale.scale = options.enabled ? options.initial_scale : 1.0;
    if (options.enabled) optimizer.begin_unscaling(1.0 / scale.scale);
  }
  ~State() {
    if (options.enabled) optimizer.end_unscaling();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::invalid_use, "GradScaler: " + what, optimizer.peers().context.rank());
  }

  DistributedOptimizer::Implementation& optimizer;
  const GradScalerOptions options;
  LossScale scale;
  Phase phase = Phase::scaled;
  bool finite = true;
};

GradScaler::GradScaler(DistributedOptimizer& optimizer, const GradScalerOptions& options) {
  check_options(options);
  DistributedOptimizer::Implementation& averaging = *optimizer.implementation_;
  check_agreement(averaging.peers(), {"GradScaler's options", "Every rank must give the same ones"},
                  averaging.name() + ".scaler", {{describe(options)}});
  state_ = std::make_unique<State>(averaging, options);
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  return state_->options.enabled ? loss * state_->scale.scale : loss;
}

void GradScaler::unscale_() {
  State& state = *state_;
  if (!state.options.enabled) return state.optimizer.synchronize_once();
  if (state.phase != Phase::scaled) {
    state.refuse(
        "the gradients have been divided by the scale already; call update() after each "
        "step");
  }
  state.optimizer.synchronize_once();
  state.finite = state.optimizer.gradients_are_finite();
  state.phase = Phase::unscaled;
}

bool GradScaler::step() {
  State& state = *state_;
  if (state.phase == Phase::scaled) unscale_();
  if (state.phase == Phase::stepped) {
    state.refuse("step() was called a second time; call update() after each step");
  }
  if (state.finite) {
    state.optimizer.step();
  } else {
    state.optimizer.skip_step();
  }
  if (state.options.enabled) state.phase = Phase::stepped;
  return state.finite;
}

void GradScaler::update() {
  State& state = *state_;
  if (!state.options.enabled) return;
  if (state.phase == Phase::scaled) state.refuse("update() was called without a step() before it");
  const LossScale next = next_scale(state.scale, state.options, state.finite);
  state.optimizer.change_unscaling(1.0 / next.scale);
  state.scale = next;
  state.phase = Phase::scaled;
  state.finite = true;
}

double GradScaler::current_scale() const {
  return state_->scale.scale;
}

}  // namespace hora
