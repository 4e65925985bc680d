#include <hora/torch/grad_scaler.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <list>
#include <sstream>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/optimizer.h"
#include "frameworks/torch/peers.h"

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
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << "initial scale "
       << options.initial_scale << ", growth factor " << options.growth_factor
       << ", backoff factor " << options.backoff_factor << ", growth interval "
       << options.growth_interval;
  return text.str();
}

}  // namespace hora::internal

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
