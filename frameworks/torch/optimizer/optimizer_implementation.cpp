#include "frameworks/torch/optimizer/optimizer_implementation.h"

#include <hora/torch/collectives.h>
#include <hora/torch/gradient_hook.h>

#include <algorithm>
#include <utility>

#include "frameworks/torch/optimizer/device_clip.h"
#include "frameworks/torch/optimizer/gradient_norm.h"
#include "frameworks/torch/optimizer/optimizer_checks.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

OptimizerImplementation::OptimizerImplementation(const Peers& peers,
                                                 torch::optim::Optimizer& optimizer,
                                                 std::vector<Parameter> parameters,
                                                 const GradientAverager::Options& averaging,
                                                 const DistributedOptimizerOptions& options)
    : peers_(peers),
      name_(averaging.buckets.name),
      hooked_(options.hook != nullptr),
      loss_op_(options.op == ReduceOp::sum ? ReduceOp::sum : ReduceOp::average),
      optimizer_(optimizer),
      averager_(peers, std::move(parameters), averaging),
      hooks_(
          averager_.parameters(), [this](std::size_t index) { averager_.before_gradient(index); },
          [this](std::size_t index, const at::Tensor& delivered) {
            averager_.after_gradient(index, !no_sync_.held(), delivered);
            if (backward_) update_in_backward();
          }),
      buffers_(peers, name_ + ".buffers", options.buffers),
      broadcasts_buffers_(!options.buffers.empty()),
      overlaps_gather_(options.overlap_parameter_gather),
      updates_in_backward_(options.sharding == Sharding::in_backward) {
  if (options.hook) {
    if (!options.hook->user_.expired()) {
      throw Error(
          ErrorCode::invalid_argument,
          "DistributedOptimizer: option hook serves another DistributedOptimizer; give each "
          "an object of its own",
          peers.context.rank());
    }
    options.hook->user_ = no_sync_.take();
  }
  const bool fuses = averaging.buckets.averaging.fused != nullptr;
  if (fuses) {
    check_can_cut(averager_.parameters());
    check_can_cut_state(peers, optimizer);
    windows_.emplace(peers, averager_);
  }
  if (options.sharding != Sharding::off) {
    shards_ = std::make_unique<OptimizerShards>(peers, averager_, optimizer);
  }
  if (fuses) {
    fused_.emplace(peers, averager_, *shards_, optimizer, averaging.buckets.averaging, *windows_);
    if (updates_in_backward_) backward_.emplace(peers, averager_, *fused_);
  }
  if (options.compare_ranks) {
    comparison_.emplace(peers, name_, averager_.parameters(), optimizer);
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& tensor : group.params()) known_.insert(tensor.unsafeGetTensorImpl());
  }
}

void OptimizerImplementation::update_in_backward() {
  if (!averager_.round_open()) return;  // passes add up
  if (!averager_.answered()) {
    refuse_new_parameters();
    if (comparison_) comparison_->begin(rounds_, steps_);  // of parameters as they still are
    shards_->follow_parameters();
    backward_->begin();
  }
  backward_->proceed(!comparison_ || comparison_->agreed());
}

void OptimizerImplementation::refuse_in_backward(const std::string& what) const {
  if (!updates_in_backward_) return;
  refuse_use(what +
             " with sharding in_backward, by which parameters are updated while backward() runs: "
             "call step() after it, or choose sharding fused");
}

void OptimizerImplementation::zero_grad() {
  averager_.check_in_step();
  // Gradients given up before a step: peers may wait for the rest of this round.
  const bool open = averager_.round_open();
  if (open) refuse_in_backward("zero_grad() after backward() without step()");
  const bool unused = open || (shards_ && synchronized_);
  const bool stepped_apart = unused && averager_.parameters_changed();
  try {
    if (open) synchronize(RoundEnd::discard);
  } catch (const Error& error) {
    // Parameters that differ between ranks differ by that step.
    if (stepped_apart && error.code() == ErrorCode::mismatch) refuse_step_apart();
    throw;
  }
  drop_gradients();
  complete_parameters();
  averager_.settle(RoundEnd::discard);
  averager_.note_zero_grad();
  hooks_.refresh();
  if (stepped_apart) refuse_step_apart();
}

void OptimizerImplementation::drop_gradients() {
  for (const Parameter& parameter : averager_.parameters()) {
    parameter.tensor.mutable_grad().reset();
  }
  averager_.forget_passes();
  synchronized_ = false;
}

void OptimizerImplementation::synchronize(RoundEnd end, bool updates) {
  averager_.check_in_step();
  if (end == RoundEnd::undecided) {
    refuse_in_backward("averages before step() (synchronize(), clip_grad_norm_())");
  }
  averager_.settle(RoundEnd::discard);  // a round before, whose averages were not used
  had_gradients_ = averager_.has_gradients();
  submit_round(end, updates && fused_ && fused_->can_run());
  const GradientAverager::Cost cost = finish_round();
  statistics_.waited += cost.waited;
  statistics_.in_flight += cost.in_flight;
  statistics_.gradient_bytes = std::max(statistics_.gradient_bytes, cost.gradient_bytes);
  if (averager_.updates()) {
    shards_->drop_gradients();
  } else if (shards_) {
    shards_->take_gradients();
  }
  hooks_.refresh();
  synchronized_ = true;
}

// Buffers and comparison belong to the round, not to step(): ranks that meet in it may have called
// something else.
void OptimizerImplementation::submit_round(RoundEnd end, bool updates) {
  buffers_.begin(peers_.first);
  if (comparison_) comparison_->begin(rounds_, steps_);
  averager_.submit(end, updates);
}

GradientAverager::Cost OptimizerImplementation::finish_round() {
  const std::int64_t round = rounds_++;
  const GradientAverager::Cost cost = averager_.finish();
  buffers_.end();
  try {
    if (comparison_) comparison_->end();
  } catch (...) {
    rounds_ = round;  // on every rank: the next one compares again
    throw;
  }
  return cost;
}

void OptimizerImplementation::synchronize_once(RoundEnd end, bool updates) {
  averager_.check_in_step();
  if (!is_synchronized()) synchronize(end, updates);
}

void OptimizerImplementation::synchronize_to_step(bool updates) {
  synchronize_once(RoundEnd::step, updates);
  if (shards_) shards_->follow_parameters();
  averager_.settle(RoundEnd::step);
}

bool OptimizerImplementation::is_synchronized() const {
  return synchronized_ && !averager_.has_gradients();
}

void OptimizerImplementation::refuse_use(const std::string& what) const {
  throw Error(ErrorCode::invalid_use, "DistributedOptimizer: " + what, peers_.context.rank());
}

void OptimizerImplementation::step() {
  refuse_new_parameters();
  if (evaluates_again(optimizer_)) refuse_use("LBFGS needs a closure; call step(closure)");
  if (skip_synchronize_.held() && !is_synchronized()) {
    refuse_use(
        "step() under skip_synchronize(), but gradients have not been averaged since the last "
        "backward(); call synchronize() first");
  }
  synchronize_to_step(/*updates=*/true);
  end_step();
  if (averager_.updates()) {
    if (!fused_->parameters_hold()) {
      refuse_use(
          "a parameter has got other memory (set_data(), to(), load()) between backward() and "
          "step(), but with sharding in_backward the memory that it had is updated; do that after "
          "step()");
    }
    fused_->run();
    averager_.end_update();
  } else {
    optimizer_.step();
  }
  finish_step();
}

torch::Tensor OptimizerImplementation::step(const torch::optim::Optimizer::LossClosure& closure) {
  refuse_new_parameters();
  refuse_in_backward("step(closure)");
  if (skip_synchronize_.held()) {
    refuse_use(
        "step(closure) under skip_synchronize(), but what the closure gives must be averaged; call "
        "it without");
  }
  if (scaler_ != nullptr) {
    refuse_use(
        "step(closure) with a GradScaler, which is to decide whether to step; call its step()");
  }
  const torch::Tensor loss = optimizer_.step([&] { return evaluate(closure); });
  end_step();
  finish_step();
  return loss;
}

torch::Tensor OptimizerImplementation::evaluate(
    const torch::optim::Optimizer::LossClosure& closure) {
  synchronized_ = false;
  const torch::Tensor loss = closure();
  if (!loss.defined() || loss.numel() != 1 || !loss.is_floating_point()) {
    throw Error(ErrorCode::invalid_argument,
                "DistributedOptimizer: step(closure): the closure must return its loss, one "
                "floating-point element",
                peers_.context.rank());
  }
  const at::NoGradGuard no_grad;
  // A rank's own type of loss need not be the others'.
  TensorHandle average = allreduce_async_(
      peers_.context,
      loss.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).flatten(),
      {.name = name_ + ".loss", .op = loss_op_, .process_set = peers_.set});
  synchronize_to_step();
  return average.wait().to(loss.scalar_type()).reshape_as(loss);
}

void OptimizerImplementation::finish_step() {
  if (shards_ && !averager_.updates()) shards_->begin_gather();
  if (!overlaps_gather_) complete_parameters();
  if (backward_) backward_->end();
  statistics_.steps += 1;
  steps_ += 1;
}

void OptimizerImplementation::end_step() {
  synchronized_ = false;
  averager_.note_step();
}

std::vector<at::Tensor> OptimizerImplementation::averaged_gradients() const {
  if (shards_) return shards_->gradients();
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : averager_.parameters()) {
    if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
  }
  return gradients;
}

double OptimizerImplementation::clip_grad_norm(double max_norm) {
  if (!(max_norm > 0)) {
    throw Error(ErrorCode::invalid_argument,
                "DistributedOptimizer: clip_grad_norm_: max_norm is " + std::to_string(max_norm) +
                    "; expected more than 0",
                peers_.context.rank());
  }
  synchronize_once();
  const auto gradients = averaged_gradients();
  const std::string exchange = name_ + ".norm";
  const auto& parameters = averager_.parameters();
  const bool on_host = std::all_of(parameters.begin(), parameters.end(),
                                   [](const auto& each) { return each.tensor.is_cpu(); });
  if (!on_host) {
    return clip_on_device(peers_, exchange, gradients,
                          shards_ ? GradientOwners::each : GradientOwners::all, averager_.device(),
                          max_norm);
  }
  const auto norm_of = shards_ ? norm_of_own_gradients : norm_of_equal_gradients;
  const double norm = norm_of(peers_, exchange, gradients);
  clip(gradients, norm, max_norm);
  return norm;
}

std::vector<OptimizerPiece> OptimizerImplementation::pieces() const {
  if (shards_) return shards_->pieces();
  std::vector<OptimizerPiece> pieces;
  for (const Parameter& parameter : averager_.parameters()) {
    pieces.push_back({parameter.name, parameter.tensor, parameter.tensor});
  }
  return pieces;
}

void OptimizerImplementation::check_between_steps(const std::string& what) const {
  if (!averager_.has_gradients() && !synchronized_) return;
  refuse_use(what + " between backward() and step(); call it after step()");
}

void OptimizerImplementation::complete_parameters() {
  if (shards_) shards_->end_gather();
}

void OptimizerImplementation::refuse_under_way(const std::string& what) const {
  if (!averager_.has_gradients()) return;
  throw Error(ErrorCode::invalid_use, what, peers_.context.rank());
}

void OptimizerImplementation::set_backward_passes(int passes) {
  check_backward_passes(passes);
  refuse_under_way(
      "DistributedOptimizer: set_backward_passes_per_step() between backward() and step(); call "
      "it before backward()");
  averager_.set_backward_passes(passes);
}

void OptimizerImplementation::begin_unscaling(double factor, Scaler& scaler) {
  if (evaluates_again(optimizer_)) {
    throw Error(ErrorCode::invalid_argument,
                "GradScaler and LBFGS do not go together: it needs each loss as it is, and cannot "
                "leave out a step",
                peers_.context.rank());
  }
  if (scaler_ != nullptr) {
    throw Error(ErrorCode::invalid_use,
                "GradScaler: this optimizer has one already; destroy that before another is made",
                peers_.context.rank());
  }
  for (std::size_t bucket = 0; shards_ && bucket < averager_.buckets().size(); ++bucket) {
    if (averager_.buckets().layout(bucket).type != DataType::float16) continue;
    throw Error(ErrorCode::invalid_use,
                "GradScaler: float16 parameters with sharding are not unscaled; keep them in "
                "float32, or leave out sharding",
                peers_.context.rank());
  }
  refuse_in_backward("a GradScaler, which may leave out steps,");
  check_unscaling_may_change();
  change_unscaling(factor);
  scaler_ = &scaler;
}

void OptimizerImplementation::check_unscaling_may_change() const {
  refuse_under_way(
      "GradScaler: constructed or updated between backward() and step(), when gradients scaled by "
      "another factor are under way; do it before backward()");
}

void OptimizerImplementation::change_unscaling(double factor) {
  averager_.unscale_by(factor);
}

void OptimizerImplementation::end_unscaling() noexcept {
  averager_.unscale_by(std::nullopt);
  scaler_ = nullptr;
}

void OptimizerImplementation::refuse_step_apart() const {
  throw Error(ErrorCode::invalid_use,
              "DistributedOptimizer: parameters have changed since backward() without a step() of "
              "this optimizer: was the wrapped optimizer's own step() called, with gradients that "
              "were not averaged? Call DistributedOptimizer's in its place; to change parameters "
              "otherwise, call zero_grad() first",
              peers_.context.rank());
}

// Parameters added later would be stepped with this rank's own gradient: silently wrong.
void OptimizerImplementation::refuse_new_parameters() const {
  for (const auto& group : optimizer_.param_groups()) {
    for (const auto& tensor : group.params()) {
      if (known_.contains(tensor.unsafeGetTensorImpl())) continue;
      throw Error(ErrorCode::invalid_argument,
                  "DistributedOptimizer: a parameter was added to the wrapped optimizer after "
                  "construction; add parameter groups first, then construct DistributedOptimizer");
    }
  }
}

}  // namespace hora::internal
