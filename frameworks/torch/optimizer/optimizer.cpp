#include "frameworks/torch/optimizer/optimizer.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <thread>

#include "core/base/diagnostics.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

using torch::autograd::variable_list;

class AfterAccumulation : public torch::autograd::FunctionPostHook {
 public:
  AfterAccumulation(const GradientHooks::HookAfter& hook, std::size_t index)
      : hook_(hook), index_(index) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    static const at::Tensor none;
    hook_(index_, inputs.empty() ? none : inputs.front());
    return outputs;
  }

 private:
  const GradientHooks::HookAfter& hook_;
  std::size_t index_;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<Parameter>& parameters, Hook before, HookAfter after)
    : before_(std::move(before)), after_(std::move(after)) {
  for (const Parameter& parameter : parameters) entries_.push_back({parameter, {}, 0, 0});
  refresh();
}

GradientHooks::~GradientHooks() {
  for (HookedParameter& entry : entries_) {
    if (!entry.accumulator) continue;
    entry.accumulator->del_post_hook(entry.after_key);
    try {
      entry.parameter.tensor.remove_hook(entry.before_position);
    } catch (...) {  // only where the list of hooks was cleared, these included
    }
  }
}

void GradientHooks::refresh() {
  for (const auto& [parameter, accumulator, key, position] : entries_) {
    if (accumulator || !hooked(parameter.tensor)) continue;
    throw Error(
        ErrorCode::invalid_use,
        "DistributedOptimizer: parameter '" + parameter.name +
            "' belongs to another DistributedOptimizer, which averages its gradient already; "
            "wrap each optimizer once, and destroy the former wrapper before another is made",
        -1, parameter.name);
  }
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    HookedParameter& entry = entries_[index];
    const at::Tensor& tensor = entry.parameter.tensor;
    if (!tensor.requires_grad()) continue;
    if (!entry.accumulator) {
      // The public call, not impl::add_hook: a user's own register_hook() would clear that one.
      entry.before_position =
          tensor.register_hook([this, index](const at::TensorBase&) { before_(index); });
    } else if (torch::autograd::impl::try_get_grad_accumulator(tensor) == entry.accumulator) {
      continue;
    } else {
      entry.accumulator->del_post_hook(entry.after_key);
    }
    entry.accumulator = torch::autograd::impl::grad_accumulator(tensor);
    entry.after_key =
        entry.accumulator->add_post_hook(std::make_unique<AfterAccumulation>(after_, index));
  }
}

bool GradientHooks::hooked(const at::Tensor& parameter) {
  if (!parameter.requires_grad() || !parameter.is_leaf()) return false;
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  const auto& hooks = accumulator->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const AfterAccumulation*>(hook.get()) != nullptr;
  });
}

}  // namespace hora::internal

namespace hora {
using namespace internal;

double OptimizerStatistics::hidden_share() const {
  if (in_flight.count() <= 0) return 0.0;
  const double share =
      1.0 - static_cast<double>(waited.count()) / static_cast<double>(in_flight.count());
  return std::clamp(share, 0.0, 1.0);
}

DistributedOptimizer::DistributedOptimizer(
    const Context& context, torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
    const DistributedOptimizerOptions& options) {
  start_tensor_arena(context);
  share_device_memory(context);
  const Peers peers = peers_of(context, options.process_set);
  auto parameters = select_parameters(peers, optimizer, named_parameters, options);
  const RoundOptions rounds = round_options(peers, optimizer, parameters, options);
  implementation_ = std::make_unique<OptimizerImplementation>(
      peers, optimizer, std::move(parameters), rounds, options);
}

DistributedOptimizer::~DistributedOptimizer() {
  OptimizerImplementation::destroy(std::move(implementation_));
}
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&& other) noexcept {
  OptimizerImplementation::destroy(
      std::exchange(implementation_, std::move(other.implementation_)));
  return *this;
}

OptimizerImplementation& DistributedOptimizer::implementation() const {
  if (implementation_) return *implementation_;
  throw Error(ErrorCode::invalid_use,
              "DistributedOptimizer: it was moved from; use the one that it was moved to");
}

void DistributedOptimizer::zero_grad() {
  implementation().zero_grad();
}
void DistributedOptimizer::synchronize() {
  implementation().synchronize();
}
void DistributedOptimizer::step() {
  implementation().step();
}
torch::Tensor DistributedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure) return implementation().step(closure);
  implementation().step();
  return {};
}
DistributedOptimizer::Guard DistributedOptimizer::no_sync() {
  return Guard(implementation().no_sync());
}
DistributedOptimizer::Guard DistributedOptimizer::skip_synchronize() {
  return Guard(implementation().skip_synchronize());
}
void DistributedOptimizer::set_backward_passes_per_step(int passes) {
  implementation().set_backward_passes(passes);
}
double DistributedOptimizer::clip_grad_norm_(double max_norm) {
  return implementation().clip_grad_norm(max_norm);
}
void DistributedOptimizer::complete_parameters() {
  implementation().complete_parameters();
}
int DistributedOptimizer::join() {
  return OptimizerImplementation::join({&implementation()});
}
torch::optim::Optimizer& DistributedOptimizer::wrapped() {
  return implementation().optimizer();
}
OptimizerStatistics DistributedOptimizer::statistics() const {
  return implementation().statistics();
}
void DistributedOptimizer::reset_statistics() {
  implementation().statistics() = {};
}

int join(const Context& context, const std::vector<DistributedOptimizer*>& optimizers) {
  const auto joined = OptimizerImplementation::together(optimizers, "join()");
  if (&joined.front()->peers().context != &context) {
    throw Error(ErrorCode::invalid_argument,
                "join(): the optimizers were constructed with another Context", context.rank());
  }
  return OptimizerImplementation::join(joined);
}

OptimizerImplementation::OptimizerImplementation(const Peers& peers,
                                                 torch::optim::Optimizer& optimizer,
                                                 std::vector<Parameter> parameters,
                                                 const RoundOptions& rounds,
                                                 const DistributedOptimizerOptions& options)
    : peers_(peers),
      name_(rounds.buckets.name),
      options_(options),
      optimizer_(optimizer),
      round_(peers, std::move(parameters), rounds),
      hooks_(
          round_.parameters(), [this](std::size_t index) { round_.before_gradient(index); },
          [this](std::size_t index, const at::Tensor& delivered) {
            round_.after_gradient(index, !held(no_sync_), delivered);
            if (fused_ && options_.sharding == Sharding::in_backward) update_in_backward();
          }),
      buffers_(peers, name_ + ".buffers", options.buffers),
      comparison_(peers, name_, round_.parameters(), optimizer, options.compare_ranks) {
  if (options.hook) {
    if (!options.hook->user_.expired()) {
      fail(ErrorCode::invalid_argument,
           "DistributedOptimizer: option hook serves another DistributedOptimizer; give each "
           "an object of its own");
    }
    options.hook->user_ = no_sync_;
  }
  if (options.sharding != Sharding::off) {
    shards_ = std::make_unique<OptimizerShards>(peers, round_, optimizer);
  }
  if (rounds.buckets.fused) {
    fused_ = std::make_unique<FusedUpdate>(peers, round_, *shards_, optimizer, rounds.buckets,
                                           options.sharding == Sharding::in_backward);
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& tensor : group.params()) known_.insert(tensor.unsafeGetTensorImpl());
  }
}

void OptimizerImplementation::update_in_backward() {
  if (!round_.is_open()) return;  // passes add up
  if (!round_.announced()) {
    refuse_new_parameters();
    const auto compared = comparison_.begin(rounds_, steps_);  // of parameters as they still are
    shards_->follow_parameters();
    const bool can_run = fused_->can_run();
    if (can_run) fused_->begin();  // before the others know
    round_.announce(can_run, compared);
  }
  fused_->proceed();
}

void OptimizerImplementation::fail(ErrorCode code, const std::string& text) const {
  throw Error(code, text, peers_.context.rank());
}

void OptimizerImplementation::refuse(const std::string& what) const {
  fail(ErrorCode::invalid_use, "DistributedOptimizer: " + what);
}

void OptimizerImplementation::refuse_in_backward(const std::string& what) const {
  if (options_.sharding != Sharding::in_backward) return;
  refuse(what +
         " with sharding in_backward, by which parameters are updated while backward() runs: "
         "call step() after it, or choose sharding fused");
}

void OptimizerImplementation::zero_grad() {
  round_.check_in_step();
  // Gradients given up before a step: peers may wait for the rest of this round.
  const bool open = round_.is_open();
  if (open) refuse_in_backward("zero_grad() after backward() without step()");
  const bool unused = open || (shards_ && synchronized_);
  const bool stepped_apart = unused && round_.parameters_changed();
  const auto check_stepped = [&] {
    if (!stepped_apart) return;
    refuse(
        "parameters have changed since backward() without a step() of this optimizer: was the "
        "wrapped optimizer's own step() called, with gradients that were not averaged? Call "
        "DistributedOptimizer's in its place; to change parameters otherwise, call zero_grad() "
        "first");
  };
  try {
    if (open) synchronize(RoundEnd::discard);
  } catch (const Error& error) {
    // Parameters that differ between ranks differ by that step.
    if (error.code() == ErrorCode::mismatch) check_stepped();
    throw;
  }
  drop_gradients();
  complete_parameters();
  round_.settle(RoundEnd::discard);
  round_.note_zero_grad();
  hooks_.refresh();
  check_stepped();
}

void OptimizerImplementation::drop_gradients() {
  for (const Parameter& parameter : round_.parameters()) parameter.tensor.mutable_grad().reset();
  round_.forget_passes();
  synchronized_ = false;
}

void OptimizerImplementation::synchronize(RoundEnd end, bool updates) {
  round_.check_in_step();
  if (end == RoundEnd::undecided) {
    refuse_in_backward("averages before step() (synchronize(), clip_grad_norm_())");
  }
  round_.settle(RoundEnd::discard);  // a round before, whose averages were not used
  had_gradients_ = round_.has_gradients();
  submit_round(end, updates && fused_ && fused_->can_run());
  finish_round();
  if (shards_) shards_->take_gradients();
  hooks_.refresh();
  synchronized_ = true;
}

// Buffers and comparison belong to the round, not to step(): ranks that meet in it may have called
// something else.
void OptimizerImplementation::submit_round(RoundEnd end, bool updates) {
  buffers_.begin(peers_.first);
  round_.submit(end, updates, comparison_.begin(rounds_, steps_));
}

void OptimizerImplementation::finish_round() {
  rounds_ += 1;
  const OptimizerStatistics cost = round_.finish();
  buffers_.end();
  try {
    comparison_.end(round_.answer());
  } catch (...) {
    rounds_ -= 1;  // on every rank: the next one compares again
    throw;
  }
  statistics_.waited += cost.waited;
  statistics_.in_flight += cost.in_flight;
  statistics_.gradient_bytes = std::max(statistics_.gradient_bytes, cost.gradient_bytes);
}

void OptimizerImplementation::synchronize_once(RoundEnd end, bool updates) {
  round_.check_in_step();
  if (!is_synchronized()) synchronize(end, updates);
}

void OptimizerImplementation::synchronize_to_step(bool updates) {
  synchronize_once(RoundEnd::step, updates);
  if (shards_) shards_->follow_parameters();
  round_.settle(RoundEnd::step);
}

void OptimizerImplementation::step() {
  refuse_new_parameters();
  if (evaluates_again(optimizer_)) refuse("LBFGS needs a closure; call step(closure)");
  if (held(skip_synchronize_) && !is_synchronized()) {
    refuse(
        "step() under skip_synchronize(), but gradients have not been averaged since the last "
        "backward(); call synchronize() first");
  }
  synchronize_to_step(/*updates=*/true);
  end_step();
  if (round_.updates()) {
    if (!fused_->parameters_hold()) {
      refuse(
          "a parameter has got other memory (set_data(), to(), load()) between backward() and "
          "step(), but with sharding in_backward the memory that it had is updated; do that after "
          "step()");
    }
    fused_->run();
    round_.end_update();
  } else {
    if (before_change_) before_change_();
    optimizer_.step();
  }
  finish_step();
}

torch::Tensor OptimizerImplementation::step(const torch::optim::Optimizer::LossClosure& closure) {
  refuse_new_parameters();
  refuse_in_backward("step(closure)");
  if (held(skip_synchronize_)) {
    refuse(
        "step(closure) under skip_synchronize(), but what the closure gives must be averaged; call "
        "it without");
  }
  if (scaling_ != nullptr) {
    refuse("step(closure) with a GradScaler, which is to decide whether to step; call its step()");
  }
  if (before_change_) before_change_();
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
    fail(ErrorCode::invalid_argument,
         "DistributedOptimizer: step(closure): the closure must return its loss, one "
         "floating-point element");
  }
  const at::NoGradGuard no_grad;
  // A rank's own type of loss need not be the others'.
  TensorHandle average = allreduce_async_(
      peers_.context,
      loss.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).flatten(),
      {.name = name_ + ".loss",
       .op = options_.op == ReduceOp::sum ? ReduceOp::sum : ReduceOp::average,
       .process_set = peers_.set});
  synchronize_to_step(/*updates=*/false);
  return average.wait().to(loss.scalar_type()).reshape_as(loss);
}

void OptimizerImplementation::finish_step() {
  if (shards_ && !round_.updates()) shards_->begin_gather();
  if (!options_.overlap_parameter_gather) complete_parameters();
  if (fused_) fused_->end();
  statistics_.steps += 1;
  steps_ += 1;
}

void OptimizerImplementation::end_step() {
  synchronized_ = false;
  round_.note_step();
}

double OptimizerImplementation::clip_grad_norm(double max_norm) {
  if (!(max_norm > 0)) {
    fail(ErrorCode::invalid_argument,
         c10::str("DistributedOptimizer: clip_grad_norm_: max_norm is ", max_norm,
                  "; expected more than 0"));
  }
  synchronize_once();
  std::vector<at::Tensor> gradients;
  for (const OptimizerPiece& piece : pieces()) {
    if (piece.stepped.grad().defined()) gradients.push_back(piece.stepped.grad());
  }
  const bool on_host = std::ranges::all_of(round_.parameters(),
                                           [](const auto& each) { return each.tensor.is_cpu(); });
  return clip(peers_, name_ + ".norm", gradients, /*shared=*/!shards_, max_norm,
              on_host ? std::nullopt : std::optional(round_.device()));
}

std::vector<OptimizerPiece> OptimizerImplementation::pieces() const {
  if (shards_) return shards_->pieces();
  std::vector<OptimizerPiece> pieces;
  for (const Parameter& parameter : round_.parameters()) {
    pieces.push_back({parameter.name, parameter.tensor, parameter.tensor});
  }
  return pieces;
}

void OptimizerImplementation::check_between_steps(const std::string& what) const {
  if (!round_.has_gradients() && !synchronized_) return;
  refuse(what + " between backward() and step(); call it after step()");
}

void OptimizerImplementation::complete_parameters() {
  if (shards_) shards_->end_gather();
}

void OptimizerImplementation::set_backward_passes(int passes) {
  check_backward_passes(passes);
  if (round_.has_gradients()) {
    refuse(
        "set_backward_passes_per_step() between backward() and step(); call it before backward()");
  }
  round_.set_backward_passes(passes);
}

void OptimizerImplementation::begin_unscaling(LossScaling& scaling) {
  if (evaluates_again(optimizer_)) {
    fail(ErrorCode::invalid_argument,
         "GradScaler and LBFGS do not go together: it needs each loss as it is, and cannot "
         "leave out a step");
  }
  if (scaling_ != nullptr) {
    fail(ErrorCode::invalid_use,
         "GradScaler: this optimizer has one already; destroy that before another is made");
  }
  for (const Bucket& bucket : round_.buckets()) {
    if (!shards_ || bucket.layout().type != DataType::float16) continue;
    fail(ErrorCode::invalid_use,
         "GradScaler: float16 parameters with sharding are not unscaled; keep them in "
         "float32, or leave out sharding");
  }
  refuse_in_backward("a GradScaler, which may leave out steps,");
  check_unscaling_may_change();
  change_unscaling(1.0 / scaling.scale.scale);
  scaling_ = &scaling;
}

void OptimizerImplementation::check_unscaling_may_change() const {
  if (!round_.has_gradients()) return;
  fail(ErrorCode::invalid_use,
       "GradScaler: constructed or updated between backward() and step(), when gradients scaled by "
       "another factor are under way; do it before backward()");
}

void OptimizerImplementation::end_unscaling() noexcept {
  round_.unscale_by(std::nullopt);
  scaling_ = nullptr;
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

std::vector<OptimizerImplementation*> OptimizerImplementation::together(
    const std::vector<DistributedOptimizer*>& optimizers, const std::string& user) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, user + ": " + what);
  };
  if (optimizers.empty()) refuse("no optimizer was given; expected at least one");
  std::vector<OptimizerImplementation*> all;
  for (const DistributedOptimizer* optimizer : optimizers) {
    const std::string which = "optimizer " + std::to_string(all.size());
    if (optimizer == nullptr || !optimizer->implementation_) {
      refuse(which + " is null, or was moved from");
    }
    const auto one = optimizer->implementation_.get();
    if (std::ranges::find(all, one) != all.end())
      refuse(which + " was given before; expected once");
    all.push_back(one);
    const Peers& first = all.front()->peers();
    if (&first.context != &one->peers().context || first.set != one->peers().set) {
      refuse(which +
             " averages over another process set than optimizer 0; expected one set, whose ranks "
             "decide together");
    }
  }
  return all;
}

void OptimizerImplementation::check_can_join(
    const std::vector<OptimizerImplementation*>& together) const {
  if (shards_) refuse("join() with sharding: no rank would step a joined rank's share");
  if (!options_.buffers.empty())
    refuse("join() with option buffers: a joined rank cannot broadcast its own");
  if (options_.hook) refuse("join() with a hook, whose collectives a joined rank does not know");
  if (scaling_ != nullptr) {
    for (const OptimizerImplementation* sharing : scaling_->optimizers) {
      if (std::find(together.begin(), together.end(), sharing) != together.end()) continue;
      refuse(
          "join() without another optimizer of its GradScaler; hora::join(context, {&a, &b}) takes "
          "all");
    }
  }
}

int OptimizerImplementation::join(const std::vector<OptimizerImplementation*>& optimizers) {
  for (const OptimizerImplementation* optimizer : optimizers) {
    optimizer->check_can_join(optimizers);
    optimizer->round_.check_in_step();
  }
  std::vector<std::string> names;
  for (OptimizerImplementation* optimizer : optimizers) {
    names.push_back(optimizer->name());
    if (optimizer->round_.is_open()) optimizer->synchronize();
    optimizer->drop_gradients();
  }
  const Peers& peers = optimizers.front()->peers();
  const int last = hora::join(peers.context, peers.set);
  check_agreement(peers,
                  {"The optimizers given to join()",
                   "Every rank must join with the same ones, in the same order"},
                  "hora.join.optimizers", names);
  int most_trained = last;
  for (OptimizerImplementation* optimizer : optimizers)
    most_trained = optimizer->become_most_trained(last);
  return most_trained;
}

int OptimizerImplementation::become_most_trained(int last) {
  const Context& context = peers_.context;
  std::vector<std::int64_t> rounds(static_cast<std::size_t>(context.size()), 0);
  rounds[static_cast<std::size_t>(context.rank())] = rounds_;
  allreduce(context, view(rounds),
            {.name = name_ + ".join.rounds", .op = ReduceOp::sum, .process_set = peers_.set});
  const auto most = std::max_element(rounds.begin(), rounds.end());
  const bool is_last = rounds[static_cast<std::size_t>(last)] == *most;
  const int root = is_last ? last : static_cast<int>(most - rounds.begin());
  // Steps up to 2^53 are exact.
  const LossScale own = scaling_ != nullptr ? scaling_->scale : LossScale{};
  std::array<double, 3> progress = {static_cast<double>(steps_), own.scale,
                                    static_cast<double>(own.finite_steps)};
  broadcast(context, view(std::span(progress)),
            {.name = name_ + ".join.progress", .root = root, .process_set = peers_.set});
  steps_ = static_cast<std::int64_t>(progress[0]);
  if (scaling_ != nullptr) scaling_->take({progress[1], static_cast<int>(progress[2])});
  JointBroadcast parameters(peers_, name_ + ".join", tensors_of(round_.parameters()));
  parameters.begin(root);
  parameters.end();
  broadcast_optimizer_state(context, optimizer_, root, peers_.set);
  round_.take_layout(root);
  round_.restart_steps();
  rounds_ = steps_;
  return root;
}

void OptimizerImplementation::destroy(
    std::unique_ptr<OptimizerImplementation> implementation) noexcept {
  if (!implementation || std::uncaught_exceptions() != 0) return;
  try {
    if (implementation->end_open_round()) return;
  } catch (...) {  // A destructor does not throw, not even where logging fails.
  }
  abandon(std::move(implementation));
}

bool OptimizerImplementation::end_open_round() {
  if (!round_.is_open() && !round_.unsettled()) return true;
  using Clock = std::chrono::steady_clock;
  const auto set = peers_.context.settings().stall_warning;
  const auto period = set.count() != 0 ? set : Settings{}.stall_warning;
  auto deadline = Clock::now() + period;
  bool warned = false;
  const Wait wait = [&](const std::function<bool()>& reached) {
    while (!reached()) {
      if (!peers_.context.is_shut_down()) peers_.context.progress();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (Clock::now() < deadline) continue;
      if (warned) return reached();
      warned = true;
      deadline += period;
      log_warning(
          destroyed_text("waits for the other ranks to end that step: by step(), zero_grad(), or "
                         "by destroying theirs"));
    }
    return true;
  };
  try {
    round_.check_in_step();
    if (discard_open_round(wait)) return true;
  } catch (const Error& error) {
    log_warning(destroyed_text(std::string("could not end that step: ") + error.what()));
    if (!round_.is_open()) return true;
    if (error.code() == ErrorCode::mismatch || error.code() == ErrorCode::shut_down) return false;
    // Until the other ranks have begun what this one has begun.
    return wait([&] { return round_.awaited().empty(); });
  }
  round_.leave();
  log_warning(destroyed_text("gives up waiting for the other ranks to end that step: it leaves " +
                             round_.awaited() +
                             " behind, with their memory, which peers may still write"));
  return false;
}

std::string OptimizerImplementation::destroyed_text(const std::string& what) const {
  return "DistributedOptimizer " + in_quotes(name_) +
         ", destroyed after backward() without step(), " + what;
}

bool OptimizerImplementation::discard_open_round(const Wait& wait) {
  const auto settle = [&] {
    if (!wait([&] { return round_.tell_end(RoundEnd::discard); })) return false;
    round_.settle(RoundEnd::discard);
    return true;
  };
  if (!settle()) return false;
  bool updated = false;
  if (round_.is_open()) {
    round_.leave_out_missing();
    submit_round(RoundEnd::discard, /*updates=*/false);
    if (!wait([&] { return round_.awaited().empty() && buffers_.ready(); })) return false;
    finish_round();
    if (!settle()) return false;
    updated = options_.sharding == Sharding::in_backward && round_.updates();
  }
  if (fused_) fused_->end();
  if (updated) {
    log_warning(destroyed_text(
        "may leave that step's update in some of the parameters, the same on all ranks "
        "(sharding in_backward)"));
  }
  return true;
}

}  // namespace hora
