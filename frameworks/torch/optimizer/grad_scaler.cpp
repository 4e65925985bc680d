#include <hora/torch/grad_scaler.h>

#include <cmath>
#include <list>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/loss_scale.h"
#include "frameworks/torch/optimizer/optimizer_implementation.h"
#include "frameworks/torch/peers.h"

namespace hora {
using namespace internal;

/// Where the scaler is in a step.
enum class Phase { scaled, unscaled, stepped };

struct GradScaler::State final : OptimizerImplementation::Scaler {
  using Optimizer = OptimizerImplementation;

  class Unscaling {
   public:
    Unscaling(Optimizer& optimizer, State& scaler) : optimizer_(optimizer) {
      optimizer_.begin_unscaling(1.0 / scaler.scale.scale, scaler);
    }
    ~Unscaling() { optimizer_.end_unscaling(); }
    Unscaling(const Unscaling&) = delete;
    Unscaling& operator=(const Unscaling&) = delete;

   private:
    Optimizer& optimizer_;
  };

  State(std::vector<Optimizer*> together, const GradScalerOptions& given)
      : averaging(std::move(together)), options(given) {
    if (!options.enabled) return;
    scale.scale = options.initial_scale;
    for (Optimizer* optimizer : averaging) unscalings.emplace_back(*optimizer, *this);
  }

  const std::vector<Optimizer*>& optimizers() const override { return averaging; }
  LossScale loss_scale() const override { return scale; }

  void take(const LossScale& next) override {
    for (Optimizer* optimizer : averaging) optimizer->change_unscaling(1.0 / next.scale);
    scale = next;
    phase = Phase::scaled;
    scaled_a_loss = false;
    finite = true;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::invalid_use, "GradScaler: " + what,
                averaging.front()->peers().context.rank());
  }

  void synchronize() const {
    for (Optimizer* optimizer : averaging) optimizer->synchronize_once();
  }

  // Only once all ranks have averaged: one that throws leaves no other waiting.
  void refuse_gradients_of_other_losses() const {
    if (scaled_a_loss) return;
    for (const Optimizer* optimizer : averaging) {
      if (!optimizer->had_gradients()) continue;
      refuse(
          "gradients have come, but scale() has given no loss since the last update(): they would "
          "be divided by what they were not multiplied by. Call backward() on what scale() gives; "
          "optimizers under one loss share one scaler: GradScaler scaler({&a, &b})");
    }
  }

  const std::vector<Optimizer*> averaging;
  const GradScalerOptions options;
  std::list<Unscaling> unscalings;
  LossScale scale;
  Phase phase = Phase::scaled;
  bool scaled_a_loss = false;  ///< since the last update
  bool finite = true;
};

GradScaler::GradScaler(DistributedOptimizer& optimizer, const GradScalerOptions& options)
    : GradScaler(std::vector<DistributedOptimizer*>{&optimizer}, options) {}

GradScaler::GradScaler(const std::vector<DistributedOptimizer*>& optimizers,
                       const GradScalerOptions& options) {
  check_options(options);
  auto averaging = OptimizerImplementation::together(optimizers, "GradScaler");
  std::vector<std::string> lines{describe(options)};
  for (const auto* optimizer : averaging) lines.push_back(optimizer->name());
  check_agreement(averaging.front()->peers(),
                  {"GradScaler's options or optimizers",
                   "Every rank must give the same ones, in the same order"},
                  "hora.grad_scaler", lines);
  state_ = std::make_unique<State>(std::move(averaging), options);
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

torch::Tensor GradScaler::scale(const torch::Tensor& loss) const {
  if (!state_->options.enabled) return loss;
  state_->scaled_a_loss = true;
  return loss * state_->scale.scale;
}

void GradScaler::unscale_() {
  State& state = *state_;
  if (!state.options.enabled) return state.synchronize();
  if (state.phase != Phase::scaled) {
    state.refuse(
        "the gradients have been divided by the scale already; call update() after each "
        "step");
  }
  state.synchronize();
  state.refuse_gradients_of_other_losses();
  for (const auto* optimizer : state.averaging) {
    state.finite = state.finite && optimizer->gradients_are_finite();
  }
  state.phase = Phase::unscaled;
}

bool GradScaler::step() {
  State& state = *state_;
  // Each averages by itself, where nothing else wants the averages in the pass that updates.
  if (state.options.enabled && state.phase == Phase::scaled) unscale_();
  if (state.phase == Phase::stepped) {
    state.refuse("step() was called a second time; call update() after each step");
  }
  for (auto* optimizer : state.averaging) {
    if (state.finite) {
      optimizer->step();
    } else {
      optimizer->skip_step();
    }
  }
  if (state.options.enabled) state.phase = Phase::stepped;
  return state.finite;
}

void GradScaler::update() {
  State& state = *state_;
  if (!state.options.enabled) return;
  if (state.phase == Phase::scaled) state.refuse("update() was called without a step() before it");
  const LossScale next = next_scale(state.scale, state.options, state.finite);
  for (const auto* optimizer : state.averaging) optimizer->check_unscaling_may_change();
  state.take(next);
}

double GradScaler::current_scale() const {
  return state_->scale.scale;
}

GradScalerState GradScaler::state() const {
  return {state_->scale.scale, state_->scale.finite_steps};
}

void GradScaler::set_state(const GradScalerState& state) {
  if (!state_->options.enabled) return;
  if (!std::isfinite(state.scale) || state.scale <= 0.0 || state.finite_steps < 0) {
    throw Error(ErrorCode::invalid_argument,
                "GradScaler: the scale " + std::to_string(state.scale) + " after " +
                    std::to_string(state.finite_steps) + " steps is none; expected one above 0");
  }
  for (const auto* optimizer : state_->averaging) optimizer->check_unscaling_may_change();
  state_->take({state.scale, state.finite_steps});
}

}  // namespace hora
