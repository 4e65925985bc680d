#include "frameworks/torch/optimizer/gradient_averager.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "frameworks/torch/optimizer/gradient_placeholder.h"
#include "frameworks/torch/optimizer/parameter_fingerprint.h"

namespace hora::internal {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::size_t> as_registered(const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

}  // namespace

GradientAverager::GradientAverager(const Peers& peers, std::vector<Parameter> parameters,
                                   const Options& options)
    : peers_(peers),
      parameters_(std::move(parameters)),
      forms_(forms_of(parameters_)),
      options_(options),
      passes_(parameters_.size(), options.backward_passes_per_step),
      steps_exchange_(peers, options.buckets.name),
      present_(parameters_.size(), false),
      changes_(peers, options_.buckets, parameters_.size(), options.static_graph, options.tuning),
      stand_ins_(parameters_, options.device),
      buckets_(std::in_place, peers, stand_ins_.parameters(), changes_.first(),
               as_registered(parameters_)) {
  if (!options.device.is_cpu()) {
    presence_.emplace(peers_, options.buckets.name + ".presence", parameters_.size());
  }
  if (options.buckets.averaging.sharded) ends_.emplace(peers_, options.buckets.name + ".end");
}

GradientAverager::~GradientAverager() {
  if (std::uncaught_exceptions() != 0) buckets_->give_up_memory();
}

void GradientAverager::before_gradient(std::size_t index) {
  const LockGuard lock(mutex_);
  if (different_steps_) throw *different_steps_;
  drop_placeholder(parameters_[index].tensor);
  const std::string& name = parameters_[index].name;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_use, "backward() reached parameter '" + name + "' " + what,
                peers_.context.rank(), name);
  };
  if (changes_.leaves_out(index)) {
    refuse(
        "of which no rank had a gradient in the first step: leave out static_graph where steps "
        "use differing parameters");
  }
  if (!buckets_->stored(index)) return;
  if (passes_.required() == 1) {
    refuse(
        "a second time before step() or synchronize(): its gradient is being averaged. Call "
        "step() between (DistributedOptimizer's, not the wrapped optimizer's), or add up gradients "
        "by backward_passes_per_step or no_sync()");
  }
  refuse("more than " + std::to_string(passes_.required()) +
         " times (backward_passes_per_step) before step() or synchronize(): its gradient is being "
         "averaged");
}

void GradientAverager::after_gradient(std::size_t index, bool counted,
                                      const at::Tensor& delivered) {
  const LockGuard lock(mutex_);
  const at::NoGradGuard no_grad;  // backward(create_graph) records otherwise
  changes_.note(index, Clock::now());
  if (passes_.add(index, counted)) naming_step([&] { store(index, delivered); });
}

void GradientAverager::unscale_by(std::optional<double> factor) {
  const LockGuard lock(mutex_);
  unscale_ = factor;
}

bool GradientAverager::gradients_were_finite() const {
  const LockGuard lock(mutex_);
  const auto flags = buckets_->flags();
  return flags.empty() || !at::cat(flags).any().item<bool>();
}

void GradientAverager::set_backward_passes(int passes) {
  const LockGuard lock(mutex_);
  passes_.require(passes);
}

bool GradientAverager::round_open() const {
  const LockGuard lock(mutex_);
  return open_;
}

bool GradientAverager::has_gradients() const {
  const LockGuard lock(mutex_);
  return passes_.any();
}

bool GradientAverager::parameters_changed() const {
  const LockGuard lock(mutex_);
  return fingerprint() != fingerprint_before_;
}

void GradientAverager::forget_passes() {
  const LockGuard lock(mutex_);
  passes_.reset();
}

void GradientAverager::leave_out_missing() {
  const LockGuard lock(mutex_);
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!buckets_->has_bucket(index) || buckets_->stored(index)) continue;
    if (presence_) presence_->note_absent(index);
    buckets_->store_absent(index);
  }
}

void GradientAverager::submit(RoundEnd end, bool updates) {
  const LockGuard lock(mutex_);
  const at::NoGradGuard no_grad;
  waiting_since_ = Clock::now();
  if (!open_) begin_round();
  const auto& fused = options_.buckets.averaging.fused;
  naming_step([&] {
    submit_rest();
    if (fused && !answer_once(updates)) buckets_->begin_apart();
  });
  if (ends_ && end != RoundEnd::undecided) ends_->send(end);
}

std::vector<std::string> GradientAverager::awaited() const {
  const LockGuard lock(mutex_);
  std::vector<std::string> names;
  if (open_) names = buckets_->awaited();
  if (presence_ && !presence_->ready()) names.push_back(options_.buckets.name + ".presence");
  const auto& fused = options_.buckets.averaging.fused;
  if (fused && !fused->ready()) names.push_back(fused->name());
  for (std::string& name : changes_.awaited()) names.push_back(std::move(name));
  if (ends_ && !ends_->ready()) names.push_back(options_.buckets.name + ".end");
  return names;
}

GradientAverager::Cost GradientAverager::finish() {
  const LockGuard lock(mutex_);
  const at::NoGradGuard no_grad;
  Cost cost;
  std::exception_ptr failure;
  try {
    naming_step([&] { wait(); });
    cost = {Clock::now() - waiting_since_,
            peers_.context.statistics().in_flight - in_flight_before_, most_held_bytes_};
    check_one_step();
    publish();
    unsettled_ = ends_.has_value();
  } catch (...) {
    failure = std::current_exception();
  }
  end_round();
  const auto& fused = options_.buckets.averaging.fused;
  if (failure || !fused || !fused->updates()) buckets_->give_back_gradients();
  if (failure) std::rethrow_exception(failure);
  return cost;
}

void GradientAverager::submit_rest() {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (buckets_->has_bucket(index) && !buckets_->stored(index)) store(index);
  }
  buckets_->submit_all();
  if (presence_) presence_->begin(steps_.lane());
  changes_.begin(waiting_since_);
}

void GradientAverager::wait() {
  std::exception_ptr failure;
  try {
    if (options_.buckets.averaging.fused) options_.buckets.averaging.fused->agree();
  } catch (...) {
    failure = std::current_exception();
  }
  buckets_->wait();
  if (failure) std::rethrow_exception(failure);
  if (presence_) presence_->wait();
  changes_.wait();
}

bool GradientAverager::present(std::size_t index) const {
  const LockGuard lock(mutex_);
  return present_[index];
}

// A rank steps its shares alone: more than one value of each, for one to be among them.
std::uint64_t GradientAverager::fingerprint() const {
  return fingerprint_of(parameters_, options_.buckets.averaging.sharded ? 8 : 1);
}

void GradientAverager::lay_out_anew() {
  if (!changes_.pending()) return;
  bool same_order = true;
  for (std::size_t i = 0; i < forms_.size(); ++i) {
    if (changes_.fixed()) forms_[i].check_with_order(parameters_[i]);
    same_order = same_order && forms_[i].has_order(parameters_[i]);
  }
  const auto layout = changes_.next(*buckets_);
  if (!layout || !same_order) return;
  GradientBuckets anew(peers_, stand_ins_.parameters(), layout->options, layout->order);
  buckets_.emplace(std::move(anew));
}

void GradientAverager::begin_round() {
  lay_out_anew();
  open_ = true;
  answer_.reset();
  held_bytes_ = most_held_bytes_ = 0;
  fingerprint_before_ = fingerprint();
  in_flight_before_ = peers_.context.statistics().in_flight;
  steps_.begin_round();
  buckets_->begin_round(unscale_, steps_.lane());
}

void GradientAverager::store(std::size_t index, const at::Tensor& delivered) {
  forms_[index].check(parameters_[index]);
  if (!open_) begin_round();
  drop_placeholder(parameters_[index].tensor);
  at::Tensor& gradient = parameters_[index].tensor.mutable_grad();
  if (options_.sparse_as_dense && gradient.defined() && gradient.layout() == at::kSparse) {
    gradient = gradient.to_dense();
  }
  if (presence_ && !gradient.defined()) presence_->note_absent(index);
  stand_ins_.take(index);
  buckets_->store(index, delivered);
  if (gradient.defined()) held_bytes_ += gradient.nbytes();
  most_held_bytes_ = std::max(most_held_bytes_, held_bytes_);
}

void GradientAverager::publish() {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!buckets_->has_bucket(index)) continue;
    const auto present = buckets_->present_anywhere(index);
    present_[index] = present ? *present : presence_->anywhere(index);
    // A shard is not a parameter's whole gradient.
    const bool sharded = options_.buckets.averaging.sharded;
    buckets_->publish(index, present_[index] && !sharded);
    stand_ins_.give(index);
    if (present_[index] && sharded) put_placeholder(parameters_[index].tensor);
  }
  changes_.end_round(present_, *buckets_);
}

void GradientAverager::take_layout(int root) {
  const LockGuard lock(mutex_);
  changes_.take(root);
}

void GradientAverager::end_round() {
  open_ = false;
  passes_.reset();
  if (presence_) presence_->end();
  buckets_->end_round();
}

void GradientAverager::check_in_step() const {
  const LockGuard lock(mutex_);
  if (different_steps_) throw *different_steps_;
}

void GradientAverager::note_step() {
  const LockGuard lock(mutex_);
  steps_.note_step();
}

void GradientAverager::note_zero_grad() {
  const LockGuard lock(mutex_);
  steps_.note_zero_grad();
}

void GradientAverager::restart_steps() {
  const LockGuard lock(mutex_);
  steps_.restart();
}

void GradientAverager::naming_step(const std::function<void()>& action) const {
  try {
    action();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::shut_down || peers_.context.is_shut_down()) throw;
    // A rank that has departed has ended as many rounds as this one, and takes no part in this one.
    throw Error(ErrorCode::shut_down,
                std::string(error.what()) + ". This rank is in step " +
                    std::to_string(steps_.calls_before().steps + 1) +
                    ", which that rank has not reached: every rank must make as many steps; one "
                    "whose data end earlier calls DistributedOptimizer::join()",
                error.rank(), error.tensor());
  }
}

void GradientAverager::check_one_step() {
  if (presence_ ? presence_->in_one_step() : buckets_->in_one_step().value()) return;
  if (ends_) {  // all that some ranks have sent already is sent by all
    ends_->send(RoundEnd::discard);
    ends_->agree();
  }
  refuse_steps(steps_.calls_before(), /*updated=*/false);
}

void GradientAverager::refuse_steps(const StepCalls& calls, bool updated) {
  steps_exchange_.send(calls);
  different_steps_ = steps_exchange_.error(updated);
  throw *different_steps_;
}

void GradientAverager::leave() {
  const LockGuard lock(mutex_);
  steps_exchange_.send(steps_.calls());  // for ranks that find steps to differ
}

bool GradientAverager::unsettled() const {
  const LockGuard lock(mutex_);
  return unsettled_;
}

bool GradientAverager::tell_end(RoundEnd end) {
  const LockGuard lock(mutex_);
  if (!unsettled_) return true;
  ends_->send(end);
  return ends_->ready();
}

void GradientAverager::settle(RoundEnd end) {
  const LockGuard lock(mutex_);
  if (!std::exchange(unsettled_, false)) return;
  ends_->send(end);
  bool agreed = false;
  naming_step([&] { agreed = ends_->agree(); });
  if (agreed) return;
  StepCalls calls = steps_.calls();
  if (end == RoundEnd::step) calls.steps += 1;
  const auto& fused = options_.buckets.averaging.fused;
  refuse_steps(calls, options_.updates_in_backward && fused && fused->updates());
}

}  // namespace hora::internal
