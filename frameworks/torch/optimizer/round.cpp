#include "frameworks/torch/optimizer/round.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/base/text.h"

namespace hora::internal {
namespace {

/// Buckets belong to what is made for them.
bool is_tied(const BucketOptions& options) {
  return options.sharded || options.hook || !options.groups.empty();
}

}  // namespace

LayoutChanges::LayoutChanges(const Peers& peers, const BucketOptions& options,
                             std::size_t gradients, bool fixed,
                             const std::optional<TuningOptions>& tuning)
    : peers_(peers),
      options_(options),
      fixed_(fixed),
      learns_(fixed || !is_tied(options)),
      left_out_(gradients, false) {
  if (!tuning || is_tied(options)) return;
  tuning_ = tuning;
  tuner_ = make_tuner(peers, *tuning);
}

BucketOptions LayoutChanges::options() const {
  BucketOptions options = options_;
  if (tuner_) {
    options.bucket_bytes = tuner_->form().bytes;
    if (!tuner_->form().compressed) options.compression = Compression::none;
  }
  return options;
}

void LayoutChanges::note(std::size_t gradient) {
  if (!learns_ || learned_) return;
  if (std::find(arrivals_.begin(), arrivals_.end(), gradient) == arrivals_.end()) {
    arrivals_.push_back(gradient);
  }
}

std::vector<std::size_t> LayoutChanges::arrivals() const {
  if (!learns_ || learned_) return {};
  std::vector<std::size_t> all = arrivals_;
  std::vector<bool> arrived(left_out_.size(), false);
  for (const std::size_t gradient : arrivals_) arrived[gradient] = true;
  for (std::size_t gradient = 0; gradient < arrived.size(); ++gradient) {
    if (!arrived[gradient]) all.push_back(gradient);
  }
  return all;
}

void LayoutChanges::end_round(const RoundAnswer& answer, const std::vector<bool>& present) {
  if (learns_ && !learned_) {
    // The one that comes last first; those that no rank had count as the latest.
    std::vector<std::size_t> order;
    for (const bool came : {false, true}) {
      if (!came && fixed_) continue;
      std::copy_if(answer.arrivals.rbegin(), answer.arrivals.rend(), std::back_inserter(order),
                   [&](std::size_t gradient) { return present[gradient] == came; });
    }
    adopt(std::move(order));
    pending_ = true;
  }
  if (!times_steps()) return;
  const BucketForm before = tuner_->form();
  tuner_->note(std::chrono::duration<double>(answer.step_time).count());
  if (tuner_->done() && peers_.rank_in_set == 0) report(*tuner_, *tuning_);
  if (tuner_->form() != before) pending_ = true;
}

void LayoutChanges::adopt(std::vector<std::size_t> order) {
  order_ = std::move(order);
  left_out_.assign(left_out_.size(), true);
  for (const std::size_t gradient : order_) left_out_[gradient] = false;
  learned_ = true;
}

void LayoutChanges::take(int root) {
  if (!learns_) return;
  // Ranks that were not there have fewer layouts behind them, and other names.
  BucketForm form;
  if (tuner_) form = tuner_->done() ? tuner_->form() : tuning_->usual;
  std::vector<std::int64_t> message{learned_ ? static_cast<std::int64_t>(order_.size()) : -1,
                                    layouts_, static_cast<std::int64_t>(form.bytes),
                                    form.compressed ? 1 : 0};
  const auto head = static_cast<std::ptrdiff_t>(message.size());
  message.resize(message.size() + left_out_.size());
  if (learned_) std::copy(order_.begin(), order_.end(), message.begin() + head);
  broadcast(peers_.context, view(message.data(), static_cast<std::int64_t>(message.size())),
            {.name = options_.name + ".learned", .root = root, .process_set = peers_.set});
  if (!learned_ && message[0] >= 0) {
    adopt({message.begin() + head, message.begin() + head + message[0]});
  }
  layouts_ = message[1];
  if (tuner_) tuner_ = BucketTuner({{static_cast<std::size_t>(message[2]), message[3] != 0}});
  joined_ = pending_ = learned_;
}

std::optional<LayoutChanges::Layout> LayoutChanges::next(const std::vector<Parameter>& parameters,
                                                         const std::vector<Bucket>& buckets) {
  if (!std::exchange(pending_, false)) return std::nullopt;
  const bool joined = std::exchange(joined_, false);
  Layout layout{options(), order_};
  std::vector<BucketLayout> present;
  for (const Bucket& bucket : buckets) present.push_back(bucket.layout());
  const auto wanted = bucket_layouts(peers_, parameters, layout.options, layout.order);
  if (!joined && hold_the_same(present, wanted)) return std::nullopt;
  layout.options.name.append(".").append(kLayoutName).append(std::to_string(layouts_++));
  return layout;
}

namespace {

std::vector<std::size_t> as_registered(const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

std::vector<Parameter> with_stand_ins(std::vector<Parameter> parameters, const at::Device& device) {
  for (Parameter& parameter : parameters) {
    if (parameter.tensor.device() == device) continue;
    const auto options = parameter.tensor.options().device(device).requires_grad(false);
    at::Tensor without_values = at::empty({0}, options);
    without_values.unsafeGetTensorImpl()->set_sizes_and_strides(parameter.tensor.sizes(),
                                                                parameter.tensor.strides());
    parameter.tensor = without_values;
  }
  return parameters;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided;
}

}  // namespace

Round::Round(const Peers& peers, std::vector<Parameter> parameters, const Options& options)
    : peers_(peers),
      parameters_(std::move(parameters)),
      forms_(forms_of(parameters_)),
      options_(options),
      passes_(options.backward_passes_per_step),
      counts_(parameters_.size(), 0),
      steps_exchange_(peers, options.buckets.name),
      absent_(parameters_.size(), false),
      present_(parameters_.size(), false),
      changes_(peers, options_.buckets, parameters_.size(), options.static_graph, options.tuning),
      averaged_(with_stand_ins(parameters_, options.device)),
      record_(peers, options.buckets.name + ".record"),
      ends_(peers, options.buckets.name + ".end") {
  take_buckets(make_buckets(peers, averaged_, changes_.options(), as_registered(parameters_)));
}

Round::~Round() {
  if (std::uncaught_exceptions() == 0) return;
  for (const Bucket& bucket : buckets_) {
    // The pass that updates, which no handle knows of, may read what is submitted, too.
    if (bucket.submitted || bucket.average->under_way()) bucket.memory->give_up_memory();
  }
}

void Round::take_buckets(std::vector<Bucket> buckets) {
  buckets_ = std::move(buckets);
  slots_.assign(parameters_.size(), {});
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    const auto& places = buckets_[bucket].layout().places;
    for (std::size_t place = 0; place < places.size(); ++place) {
      slots_[places[place].gradient] = {bucket, place, false};
    }
  }
}

bool Round::gradients_were_finite() const {
  std::vector<at::Tensor> flags;
  for (const Bucket& bucket : buckets_) {
    if (const at::Tensor flag = bucket.memory->flag(); flag.defined()) flags.push_back(flag);
  }
  return flags.empty() || !at::cat(flags).any().item<bool>();
}

void Round::before_gradient(std::size_t index) {
  const LockGuard lock(mutex_);
  check_in_step();
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
  if (!slots_[index].stored) return;
  if (passes_ == 1) {
    refuse(
        "a second time before step() or synchronize(): its gradient is being averaged. Call "
        "step() between (DistributedOptimizer's, not the wrapped optimizer's), or add up gradients "
        "by backward_passes_per_step or no_sync()");
  }
  refuse("more than " + std::to_string(passes_) +
         " times (backward_passes_per_step) before step() or synchronize(): its gradient is being "
         "averaged");
}

void Round::after_gradient(std::size_t index, bool counted, const at::Tensor& delivered) {
  const LockGuard lock(mutex_);
  const at::NoGradGuard no_grad;  // backward(create_graph) records otherwise
  changes_.note(index);
  has_gradients_ = true;
  if (counted && ++counts_[index] == passes_) naming_step([&] { store(index, delivered); });
}

// A rank steps its shares alone: more than one value of each, for one to be among them.
std::uint64_t Round::fingerprint() const {
  return fingerprint_of(parameters_, options_.buckets.sharded ? 8 : 1);
}

void Round::begin_round() {
  lay_out_anew();
  open_ = true;
  held_bytes_ = most_held_bytes_ = 0;
  fingerprint_before_ = fingerprint();
  in_flight_before_ = peers_.context.statistics().in_flight;
  steps_.begin_round();
  record_.begin_round();
  if (!unsettled_) ends_.begin_round();
  for (const Bucket& bucket : buckets_) {
    bucket.memory->begin_round(gradient_passes(bucket.layout().type, unscale_, peers_.size),
                               steps_.lane());
  }
}

void Round::lay_out_anew() {
  if (!changes_.pending()) return;
  bool same_order = true;
  for (std::size_t i = 0; i < forms_.size(); ++i) {
    if (changes_.fixed()) forms_[i].check_with_order(parameters_[i]);
    same_order = same_order && forms_[i].has_order(parameters_[i]);
  }
  const auto layout = changes_.next(averaged_, buckets_);
  if (!layout || !same_order) return;
  take_buckets(make_buckets(peers_, averaged_, layout->options, layout->order));
}

void Round::store(std::size_t index, const at::Tensor& delivered) {
  forms_[index].check(parameters_[index]);
  if (!open_) begin_round();
  drop_placeholder(parameters_[index].tensor);
  at::Tensor& gradient = parameters_[index].tensor.mutable_grad();
  if (options_.sparse_as_dense && gradient.defined() && gradient.layout() == at::kSparse) {
    gradient = gradient.to_dense();
  }
  absent_[index] = !gradient.defined();
  give_to_stand_in(index);
  bucket_of(index).memory->store(slots_[index].place, averaged_[index], delivered);
  note_stored(index);
  if (gradient.defined()) held_bytes_ += gradient.nbytes();
  most_held_bytes_ = std::max(most_held_bytes_, held_bytes_);
}

void Round::note_stored(std::size_t index) {
  slots_[index].stored = true;
  Bucket& bucket = bucket_of(index);
  bucket.missing -= 1;
  if (bucket.missing == 0) bucket.submit();
}

bool Round::has_stand_in(std::size_t index) const {
  return !averaged_[index].tensor.is_same(parameters_[index].tensor);
}

void Round::give_to_stand_in(std::size_t index) {
  if (!has_stand_in(index)) return;
  const at::Tensor& from = parameters_[index].tensor.mutable_grad();
  at::Tensor& to = averaged_[index].tensor.mutable_grad();
  if (!from.defined()) {
    to.reset();
  } else if (is_dense(from) && is_dense(to)) {  // hora's memory, kept from round to round
    to.copy_(from);
  } else {
    to = from.to(options_.device);
  }
}

void Round::take_from_stand_in(std::size_t index) {
  if (!has_stand_in(index)) return;
  const at::Tensor& from = averaged_[index].tensor.mutable_grad();
  const at::Tensor& parameter = parameters_[index].tensor;
  parameter.mutable_grad() = from.defined() ? from.to(parameter.device()) : at::Tensor();
}

void Round::leave_out_missing() {
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!is_missing(index)) continue;
    absent_[index] = true;
    bucket_of(index).memory->store_absent(slots_[index].place);
    note_stored(index);
  }
}

void Round::submit(RoundEnd end, bool updates, const std::optional<Compared>& compared) {
  const at::NoGradGuard no_grad;
  const auto now = Clock::now();
  const bool is_first = submitted_at_ == Clock::time_point();
  step_time_ = is_first ? Clock::duration::zero() : now - submitted_at_;
  submitted_at_ = now;
  if (!open_) begin_round();
  naming_step([&] {
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (is_missing(index)) store(index);
    }
    for (Bucket& bucket : buckets_) bucket.submit();  // one whose hook has thrown
    send_record(end, updates, compared);
    if (options_.buckets.fused && !record_.own().updates) begin_apart();
    if (announces() && end != RoundEnd::undecided) ends_.send({.end = end});
  });
}

void Round::announce(bool updates, const std::optional<Compared>& compared) {
  naming_step([&] { send_record(RoundEnd::undecided, updates, compared); });
}

void Round::send_record(RoundEnd end, bool updates, const std::optional<Compared>& compared) {
  if (record_.sent()) return;
  RoundFacts facts{.step_lane = steps_.lane(),
                   .updates = updates,
                   .end = announces() ? RoundEnd::undecided : end,
                   .compared = compared.value_or(Compared{}),
                   .arrivals = changes_.arrivals()};
  if (changes_.times_steps()) facts.step_time = step_time_;
  if (!on_host()) {
    facts.present = absent_;
    facts.present.flip();
  }
  // In most rounds of gradients on the host there is nothing to say.
  const bool needed = !on_host() || options_.buckets.sharded || compared ||
                      !facts.arrivals.empty() || changes_.times_steps();
  if (needed) record_.send(std::move(facts));
}

bool Round::ready(std::size_t bucket) {
  if (!record_.sent() || !record_.ready()) return false;
  Bucket& one = buckets_[bucket];
  bool come = false;
  naming_step([&] {
    const RoundAnswer& answer = record_.wait();
    come = answer.all_update && answer.same_values && answer.as_many_values && one.submitted &&
           one.average->begun_by_all() && one.proceed() && one.memory->in_one_step().value();
  });
  if (!come) return false;
  const auto& places = one.layout().places;
  for (std::size_t place = 0; place < places.size(); ++place) {
    present_[places[place].gradient] = one.memory->present_anywhere(place).value();
  }
  return true;
}

void Round::release(std::size_t bucket) {
  held_bytes_ -= buckets_[bucket].memory->give_back_gradients();
  for (const GradientPlace& place : buckets_[bucket].layout().places) {
    const at::Tensor& parameter = parameters_[place.gradient].tensor;
    parameter.mutable_grad().reset();
    if (present_[place.gradient]) put_placeholder(parameter);
  }
}

std::vector<std::string> Round::awaited() const {
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets_) {
    if (open_ && !bucket.average->begun_by_all()) names.push_back(bucket.name);
  }
  for (const RoundRecord* record : {&record_, &ends_}) {
    if (!record->ready()) names.push_back(record->name());
  }
  return names;
}

Round::Cost Round::finish() {
  const at::NoGradGuard no_grad;
  Cost cost;
  std::exception_ptr failure;
  try {
    naming_step([&] { wait(); });
    cost = {Clock::now() - submitted_at_, peers_.context.statistics().in_flight - in_flight_before_,
            most_held_bytes_};
    check_one_step();
    publish();
    if (options_.buckets.sharded) unsettled_ = answer();
  } catch (...) {
    failure = std::current_exception();
  }
  end_round();
  if (failure || !updates()) end_update();
  if (failure) std::rethrow_exception(failure);
  return cost;
}

void Round::end_update() {
  for (const Bucket& bucket : buckets_) bucket.memory->give_back_gradients();
}

void Round::begin_apart() {
  for (const Bucket& bucket : buckets_) bucket.average->begin_apart();
}

void Round::wait() {
  std::exception_ptr failure;
  try {
    const RoundAnswer& answer = record_.wait();
    if (options_.buckets.fused && !answer.all_update) begin_apart();
  } catch (...) {
    failure = std::current_exception();
  }
  std::vector<Bucket*> waiting;
  for (Bucket& bucket : buckets_) waiting.push_back(&bucket);
  while (!waiting.empty()) {
    std::erase_if(waiting, [&](Bucket* bucket) {
      try {
        return bucket->proceed();
      } catch (...) {
        if (!failure) failure = std::current_exception();
        return true;
      }
    });
  }
  if (failure) std::rethrow_exception(failure);
}

void Round::publish() {
  const bool sharded = options_.buckets.sharded;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!slots_[index].bucket) continue;
    const GradientBucket& memory = *bucket_of(index).memory;
    const std::size_t place = slots_[index].place;
    present_[index] = on_host() ? memory.present_anywhere(place).value() : answer().present[index];
    // A shard is not a parameter's whole gradient.
    memory.publish(place, averaged_[index], present_[index] && !sharded);
    take_from_stand_in(index);
    if (present_[index] && sharded) put_placeholder(parameters_[index].tensor);
  }
  changes_.end_round(answer(), present_);
}

void Round::forget_passes() {
  counts_.assign(counts_.size(), 0);
  has_gradients_ = false;
}

void Round::end_round() {
  open_ = false;
  forget_passes();
  for (Slot& slot : slots_) slot.stored = false;
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.layout().places.size();
    bucket.submitted = false;
  }
}

void Round::check_in_step() const {
  if (different_steps_) throw *different_steps_;
}

void Round::naming_step(const std::function<void()>& action) const {
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

void Round::check_one_step() {
  const bool in_one_step =
      on_host() ? std::all_of(buckets_.begin(), buckets_.end(),
                              [](const Bucket& of) { return of.memory->in_one_step().value(); })
                : answer().one_step;
  if (in_one_step) return;
  if (ends_.sent()) ends_.wait();
  refuse_steps(steps_.calls_before(), /*updated=*/false);
}

void Round::refuse_steps(const StepCalls& calls, bool updated) {
  steps_exchange_.send(calls);
  different_steps_ = steps_exchange_.error(updated);
  throw *different_steps_;
}

bool Round::tell_end(RoundEnd end) {
  if (!unsettled_ || !unsettled_->any_undecided) return true;
  if (!ends_.sent()) ends_.send({.end = end});
  return ends_.ready();
}

void Round::settle(RoundEnd end) {
  if (!unsettled_) return;
  const RoundAnswer round = *std::exchange(unsettled_, std::nullopt);
  bool differ = round.ends_differ;
  if (round.any_undecided) {
    if (!ends_.sent()) ends_.send({.end = end});
    naming_step([&] { differ = ends_.wait().ends_differ; });
    ends_.begin_round();
  }
  if (!differ) return;
  StepCalls calls = steps_.calls();
  if (end == RoundEnd::step) calls.steps += 1;
  refuse_steps(calls, announces() && round.all_update);
}

}  // namespace hora::internal
