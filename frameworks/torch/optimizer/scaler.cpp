#include <algorithm>
#include <cmath>
#include <limits>

#include "frameworks/torch/optimizer/optimizer.h"

namespace hora::internal {

LossScale next_scale(const LossScale& now, const GradScalerOptions& options, bool finite) {
  using Float = std::numeric_limits<float>;
  if (!finite) {
    return {std::max(now.scale * options.backoff_factor, static_cast<double>(Float::min())), 0};
  }
  if (now.finite_steps + 1 < options.growth_interval) return {now.scale, now.finite_steps + 1};
  const double grown = now.scale * options.growth_factor;
  return {grown <= static_cast<double>(Float::max()) ? grown : now.scale, 0};
}

void check_options(const GradScalerOptions& options) {
  const auto require = [](bool good, const char* name, double value, const char* allowed) {
    if (good) return;
    throw Error(ErrorCode::invalid_argument, std::string("GradScaler: ") + name + " is " +
                                                 std::to_string(value) + "; expected " + allowed);
  };
  require(options.initial_scale > 0 &&
              options.initial_scale <= static_cast<double>(std::numeric_limits<float>::max()),
          "initial_scale", options.initial_scale, "more than 0, and what float32 can hold");
  require(options.growth_factor >= 1, "growth_factor", options.growth_factor, "1 or more");
  require(options.backoff_factor > 0 && options.backoff_factor <= 1, "backoff_factor",
          options.backoff_factor, "more than 0, and 1 at most");
  require(options.growth_interval >= 1, "growth_interval", options.growth_interval, "1 or more");
}

std::string describe(const GradScalerOptions& options) {
  if (!options.enabled) return "switched off";
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << "initial scale " << options.initial_scale << ", growth factor " << options.growth_factor
       << ", backoff factor " << options.backoff_factor << ", growth interval "
       << options.growth_interval;
  return text.str();
}

void LossScaling::take(const LossScale& next) {
  for (const auto* optimizer : optimizers) optimizer->check_unscaling_may_change();
  for (auto* optimizer : optimizers) optimizer->change_unscaling(1.0 / next.scale);
  scale = next;
  phase = Phase::scaled;
  scaled_a_loss = false;
  finite = true;
}

}  // namespace hora::internal

namespace hora {
using namespace internal;

struct GradScaler::State : LossScaling {
  State(std::vector<OptimizerImplementation*> together, const GradScalerOptions& given)
      : LossScaling{.optimizers = std::move(together)}, options(given) {
    if (!options.enabled) return;
    scale.scale = options.initial_scale;
    for (OptimizerImplementation* optimizer : optimizers) {
      optimizer->begin_unscaling(*this);
      unscaled.emplace_back(optimizer);
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::invalid_use, "GradScaler: " + what,
                optimizers.front()->peers().context.rank());
  }

  void synchronize() const {
    for (OptimizerImplementation* optimizer : optimizers) optimizer->synchronize_once();
  }

  // Only once all ranks have averaged: one that throws leaves no other waiting.
  void refuse_gradients_of_other_losses() const {
    const bool any = std::any_of(optimizers.begin(), optimizers.end(),
                                 [](const auto* optimizer) { return optimizer->had_gradients(); });
    if (scaled_a_loss || !any) return;
    refuse(
        "gradients have come, but scale() has given no loss since the last update(): they would "
        "be divided by what they were not multiplied by. Call backward() on what scale() gives; "
        "optimizers under one loss share one scaler: GradScaler scaler({&a, &b})");
  }

  struct EndUnscaling {
    void operator()(OptimizerImplementation* optimizer) const { optimizer->end_unscaling(); }
  };
  const GradScalerOptions options;
  std::vector<std::unique_ptr<OptimizerImplementation, EndUnscaling>> unscaled;
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
  if (state.phase != LossScaling::Phase::scaled) {
    state.refuse(
        "the gradients have been divided by the scale already; call update() after each "
        "step");
  }
  state.synchronize();
  state.refuse_gradients_of_other_losses();
  for (const auto* optimizer : state.optimizers) {
    state.finite = state.finite && optimizer->gradients_are_finite();
  }
  state.phase = LossScaling::Phase::unscaled;
}

bool GradScaler::step() {
  State& state = *state_;
  // Each averages by itself, where nothing else wants the averages in the pass that updates.
  if (state.options.enabled && state.phase == LossScaling::Phase::scaled) unscale_();
  if (state.phase == LossScaling::Phase::stepped) {
    state.refuse("step() was called a second time; call update() after each step");
  }
  for (auto* optimizer : state.optimizers) {
    if (state.finite) {
      optimizer->step();
    } else {
      optimizer->end_step();
    }
  }
  if (state.options.enabled) state.phase = LossScaling::Phase::stepped;
  return state.finite;
}

void GradScaler::update() {
  State& state = *state_;
  if (!state.options.enabled) return;
  if (state.phase == LossScaling::Phase::scaled)
    state.refuse("update() was called without a step() before it");
  state.take(next_scale(state.scale, state.options, state.finite));
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
  state_->take({state.scale, state.finite_steps});
}

}  // namespace hora
