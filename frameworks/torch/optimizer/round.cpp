#include "frameworks/torch/optimizer/round.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <map>
#include <numeric>

#include "core/base/text.h"

namespace hora::internal {
namespace {

constexpr std::int64_t most_steps = 1;
constexpr std::int64_t most_zero_grads = 3;
static_assert((most_steps + 1) * (most_zero_grads + 1) == step_lanes);

/// Places in a message, after the step lanes: 1 where it holds for a rank, else 0; a number and its
/// complement, whose maxima over ranks are complements where all ranks have the same number.
enum MessagePlace : std::size_t {
  kNotUpdating = step_lanes,
  kUndecided,
  kSteps,
  kDiscards,
  kChecksum,
  kChecksumComplement,
  kValues,
  kValuesComplement,
  kStepTime,
  kPlaces,
};

}  // namespace

std::size_t lane_of(const StepCalls& since) {
  return static_cast<std::size_t>(std::min(since.steps, most_steps) * (most_zero_grads + 1) +
                                  std::min(since.zero_grads, most_zero_grads));
}

std::vector<std::int64_t> message_of(const RoundFacts& facts, int rank_in_set, int size) {
  std::vector<std::int64_t> message(kPlaces, 0);
  message[facts.step_lane] = 1;
  message[kNotUpdating] = facts.updates ? 0 : 1;
  message[kUndecided + static_cast<std::size_t>(facts.end)] = 1;
  message[kChecksum] = facts.compared.checksum;
  message[kChecksumComplement] = ~facts.compared.checksum;
  message[kValues] = facts.compared.values;
  message[kValuesComplement] = ~facts.compared.values;
  message[kStepTime] = facts.step_time.count();
  message.insert(message.end(), facts.present.begin(), facts.present.end());
  // The first rank that has not joined has the largest numbers.
  const std::size_t shift = static_cast<std::size_t>(size - rank_in_set) *
                            std::max<std::size_t>(facts.arrivals.size(), 1);
  for (const std::size_t gradient : facts.arrivals) {
    message.push_back(static_cast<std::int64_t>(gradient + shift));
  }
  return message;
}

RoundAnswer answer_of(std::span<const std::int64_t> message, const RoundFacts& facts) {
  RoundAnswer answer;
  const auto lanes = message.first(step_lanes);
  answer.one_step = std::ranges::count_if(lanes, [](auto set) { return set > 0; }) <= 1;
  answer.all_update = message[kNotUpdating] <= 0;
  answer.any_undecided = message[kUndecided] > 0;
  answer.ends_differ = message[kSteps] > 0 && message[kDiscards] > 0;
  answer.same_values = message[kChecksum] == ~message[kChecksumComplement];
  answer.as_many_values = message[kValues] == ~message[kValuesComplement];
  answer.step_time = std::chrono::nanoseconds(message[kStepTime]);
  const auto present = message.subspan(kPlaces, facts.present.size());
  for (const std::int64_t gradient : present) answer.present.push_back(gradient > 0);
  for (const std::int64_t gradient : message.subspan(kPlaces + facts.present.size())) {
    answer.arrivals.push_back(static_cast<std::size_t>(gradient) % facts.arrivals.size());
  }
  return answer;
}

void RoundRecord::send(RoundFacts facts) {
  // The former round's, where that has failed: the name must be free.
  if (handle_.valid()) handle_.wait();
  sent_ = true;
  facts_ = std::move(facts);
  message_ = message_of(facts_, peers_.rank_in_set, peers_.size);
  if (peers_.size == 1) {
    answer_ = answer_of(message_, facts_);
    return;
  }
  // Ranks that have joined contribute the least number.
  handle_ = allreduce_async(peers_.context, view(message_),
                            {.name = name_, .op = ReduceOp::max, .process_set = peers_.set});
}

const RoundAnswer& RoundRecord::wait() {
  if (sent_ && handle_.valid()) {
    handle_.wait();
    answer_ = answer_of(message_, facts_);
  }
  return answer_;
}

namespace {

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
std::int64_t checksum_of(std::string_view bytes) {
  std::uint64_t value = 0xcbf29ce484222325U;
  for (const char byte : bytes) {
    value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  return static_cast<std::int64_t>(value);
}

/// 0 for an optimizer of the user's that cannot be saved.
std::int64_t checksum_of(const torch::optim::OptimizerOptions& options) {
  std::ostringstream bytes;
  try {
    torch::serialize::OutputArchive archive;
    options.serialize(archive);
    archive.save_to(bytes);
  } catch (const c10::Error&) {
    return 0;
  }
  return checksum_of(bytes.str());
}

/// 0 where there is none.
double learning_rate(const torch::optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (const c10::Error&) {
    return 0.0;
  }
}

}  // namespace

RankComparison::RankComparison(const Peers& peers, std::string name,
                               const std::vector<Parameter>& parameters,
                               const torch::optim::Optimizer& optimizer, bool enabled)
    : peers_(peers),
      name_(std::move(name)),
      parameters_(parameters),
      optimizer_(optimizer),
      enabled_(enabled && peers.size > 1) {}

std::optional<Compared> RankComparison::begin(std::int64_t round, std::int64_t step) {
  if (!enabled_ || round % rounds_between != 0) return std::nullopt;
  if (round != round_) {
    round_ = round;
    step_ = step;
    values_.clear();
    if (round == 0) add_parameters();
    add_groups(ComparedValue::Kind::learning_rate);
    if (round == 0) add_groups(ComparedValue::Kind::options);  // learning rates are among them
  }
  std::vector<std::int64_t> all;
  for (const ComparedValue& value : values_) all.push_back(value.bits);
  const auto* const bytes = reinterpret_cast<const char*>(all.data());
  return Compared{checksum_of({bytes, all.size() * sizeof all[0]}), std::ssize(all)};
}

void RankComparison::end(const RoundAnswer& answer) {
  if (std::exchange(round_, -1) < 0) return;
  if (!answer.as_many_values) {
    throw Error(ErrorCode::mismatch,
                "DistributedOptimizer: ranks have different numbers of parameter groups in the "
                "wrapped optimizer; every rank must make the same ones",
                -1, name_);
  }
  if (!answer.same_values) refuse();
}

void RankComparison::add_parameters() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const Parameter& parameter : parameters_) {
    const auto bytes = parameter.tensor.element_size();
    const auto integer = bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong;
    const at::Tensor bits = parameter.tensor.detach().view(integer);
    sums.push_back(at::sum(bits, at::kLong).to(parameters_.front().tensor.device()));
  }
  if (sums.empty()) return;
  const at::Tensor all = at::stack(sums).cpu();
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    values_.push_back({ComparedValue::Kind::parameter, index, all.data_ptr<std::int64_t>()[index]});
  }
}

void RankComparison::add_groups(ComparedValue::Kind kind) {
  const auto& groups = optimizer_.param_groups();
  for (std::size_t index = 0; index < groups.size(); ++index) {
    const auto& options = groups[index].options();
    values_.push_back({kind, index,
                       kind == ComparedValue::Kind::options
                           ? checksum_of(options)
                           : std::bit_cast<std::int64_t>(learning_rate(options))});
  }
}

void RankComparison::refuse() const {
  using Kind = ComparedValue::Kind;
  const auto members = ranks_of(peers_.context, peers_.set);
  const std::size_t columns = values_.size() + 1;  // the first one: that the rank is here
  std::vector<std::int64_t> table(columns * members.size(), 0);
  auto own = table.begin() + static_cast<std::ptrdiff_t>(columns) * peers_.rank_in_set;
  *own++ = 1;
  for (const ComparedValue& value : values_) *own++ = value.bits;
  allreduce(peers_.context, view(table),
            {.name = name_ + ".differing", .op = ReduceOp::sum, .process_set = peers_.set});
  // Ranks grouped by a value, the first rank's first.
  const auto holders_of = [&](std::size_t value) {
    std::vector<std::pair<std::int64_t, std::vector<int>>> all;
    for (std::size_t row = 0; row < members.size(); ++row) {
      if (table[row * columns] == 0) continue;
      const std::int64_t bits = table[row * columns + 1 + value];
      const auto same = std::ranges::find_if(all, [&](const auto& of) { return of.first == bits; });
      (same != all.end() ? *same : all.emplace_back(bits, std::vector<int>()))
          .second.push_back(members[row]);
    }
    return all;
  };
  std::vector<std::size_t> differing;
  for (std::size_t value = 0; value < values_.size(); ++value) {
    if (holders_of(value).size() > 1) differing.push_back(value);
  }
  const auto& [kind, index, bits] = values_[differing.front()];
  const auto holders = holders_of(differing.front());
  std::ostringstream text;
  text.precision(17);
  text << "DistributedOptimizer: ";
  if (kind == Kind::parameter) {
    const auto more = std::ranges::count_if(
        differing, [&](std::size_t value) { return values_[value].kind == Kind::parameter; });
    std::vector<int> others;
    for (auto of = holders.begin() + 1; of != holders.end(); ++of) {
      others.insert(others.end(), of->second.begin(), of->second.end());
    }
    std::ranges::sort(others);
    const std::string& parameter = parameters_[index].name;
    text << "parameters differ between ranks in the first step: '" << parameter << "'";
    if (more > 1) text << " and " << more - 1 << " more";
    text << ": " << named_ranks(others) << " from rank " << holders.front().second.front()
         << ". Call broadcast_parameters(context, module) before training; where they are meant to "
            "differ, set DistributedOptimizerOptions::compare_ranks to false";
    throw Error(ErrorCode::mismatch, text.str(), others.front(), parameter);
  }
  const bool rate = kind == Kind::learning_rate;
  text << (rate ? "learning rates" : "options (such as momentum)") << " of parameter group "
       << index << " differ between ranks in step " << step_ + 1 << ": ";
  const char* separator = "";
  for (const auto& [held, ranks] : holders) {
    text << std::exchange(separator, rate ? "; " : " from ") << named_ranks(ranks);
    if (rate) text << (ranks.size() == 1 ? " has " : " have ") << std::bit_cast<double>(held);
  }
  text << ". Every rank must set the same ones: a scheduler must follow numbers that are equal on "
          "all ranks, such as an averaged loss; where they are meant to differ, set "
          "DistributedOptimizerOptions::compare_ranks to false";
  throw Error(ErrorCode::mismatch, text.str(), holders.back().second.front(), name_);
}

LayoutChanges::LayoutChanges(const Peers& peers, const RoundOptions& options, std::size_t gradients)
    : peers_(peers),
      options_(options),
      order_(gradients),
      learned_(!learns()),
      left_out_(gradients, false) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  if (options.tuning && !options.buckets.is_tied()) tuner_ = make_tuner(peers, *options.tuning);
}

bool LayoutChanges::learns() const {
  return options_.static_graph || !options_.buckets.is_tied();
}

BucketOptions LayoutChanges::options() const {
  BucketOptions options = options_.buckets;
  if (tuner_) {
    options.bucket_bytes = tuner_->form().bytes;
    if (!tuner_->form().compressed) options.compression = Compression::none;
  }
  return options;
}

void LayoutChanges::note(std::size_t gradient) {
  const bool is_new = !learned_ && std::ranges::find(arrivals_, gradient) == arrivals_.end();
  if (is_new) arrivals_.push_back(gradient);
}

std::vector<std::size_t> LayoutChanges::arrivals() const {
  if (learned_) return {};
  std::vector<std::size_t> all = arrivals_;
  for (const std::size_t gradient : order_) {
    if (std::ranges::find(arrivals_, gradient) == arrivals_.end()) all.push_back(gradient);
  }
  return all;
}

void LayoutChanges::end_round(const RoundAnswer& answer, const std::vector<bool>& present) {
  if (!learned_) {
    // The one that comes last first; those that no rank had count as the latest.
    std::vector<std::size_t> order(answer.arrivals.rbegin(), answer.arrivals.rend());
    const auto is_absent = [&](std::size_t gradient) { return !present[gradient]; };
    if (options_.static_graph) {
      std::erase_if(order, is_absent);
    } else {
      std::ranges::stable_partition(order, is_absent);
    }
    adopt(std::move(order));
    pending_ = true;
  }
  if (!times_steps()) return;
  const BucketForm before = tuner_->form();
  tuner_->note(std::chrono::duration<double>(answer.step_time).count());
  if (tuner_->done() && peers_.rank_in_set == 0) report(*tuner_, *options_.tuning);
  if (tuner_->form() != before) pending_ = true;
}

void LayoutChanges::adopt(std::vector<std::size_t> order) {
  order_ = std::move(order);
  left_out_.assign(left_out_.size(), true);
  for (const std::size_t gradient : order_) left_out_[gradient] = false;
  learned_ = true;
}

void LayoutChanges::take(int root) {
  if (!learns()) return;
  // Ranks that were not there have fewer layouts behind them, and other names.
  BucketForm form;
  if (tuner_) form = tuner_->done() ? tuner_->form() : options_.tuning->usual;
  std::vector<std::int64_t> message{learned_ ? std::ssize(order_) : -1, layouts_,
                                    static_cast<std::int64_t>(form.bytes), form.compressed ? 1 : 0};
  const std::ptrdiff_t head = std::ssize(message);
  message.resize(message.size() + left_out_.size());
  if (learned_) std::ranges::copy(order_, message.begin() + head);
  broadcast(peers_.context, view(message),
            {.name = options_.buckets.name + ".learned", .root = root, .process_set = peers_.set});
  if (!learned_ && message[0] >= 0) {
    adopt({message.begin() + head, message.begin() + head + message[0]});
  }
  layouts_ = message[1];
  if (tuner_) tuner_ = BucketTuner({{static_cast<std::size_t>(message[2]), message[3] != 0}});
  joined_ = pending_ = learned_;
}

std::optional<BucketOptions> LayoutChanges::next(const std::vector<Parameter>& parameters,
                                                 const std::vector<Bucket>& buckets) {
  if (!std::exchange(pending_, false)) return std::nullopt;
  const bool joined = std::exchange(joined_, false);
  BucketOptions wanted = options();
  std::vector<BucketLayout> present;
  for (const Bucket& bucket : buckets) present.push_back(bucket.layout());
  if (!joined && hold_the_same(present, bucket_layouts(peers_, parameters, wanted, order_))) {
    return std::nullopt;
  }
  wanted.name.append(".").append(kLayoutName).append(std::to_string(layouts_++));
  return wanted;
}

namespace {

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

Round::Round(const Peers& peers, std::vector<Parameter> parameters, const RoundOptions& options)
    : peers_(peers),
      parameters_(std::move(parameters)),
      forms_(parameters_.begin(), parameters_.end()),
      options_(options),
      passes_(options.backward_passes_per_step),
      counts_(parameters_.size(), 0),
      own_present_(parameters_.size(), false),
      present_(parameters_.size(), false),
      changes_(peers, options_, parameters_.size()),
      averaged_(with_stand_ins(parameters_, options.device)),
      record_(peers, options.buckets.name + ".record"),
      ends_(peers, options.buckets.name + ".end") {
  make_buckets(changes_.options());
}

Round::~Round() {
  if (std::uncaught_exceptions() == 0) return;
  for (const Bucket& bucket : buckets_) {
    // The pass that updates, which no handle knows of, may read what is submitted, too.
    if (bucket.submitted || bucket.under_way()) bucket.memory->give_up_memory();
  }
}

void Round::make_buckets(const BucketOptions& options) {
  std::vector<Bucket> buckets;
  for (const BucketLayout& layout : bucket_layouts(peers_, averaged_, options, changes_.order())) {
    buckets.emplace_back(peers_, averaged_, options, layout, buckets.size());
  }
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
  step_lane_ =
      lane_of({calls_.steps - calls_before_.steps, calls_.zero_grads - calls_before_.zero_grads});
  calls_before_ = calls_;
  record_.begin_round();
  if (!unsettled_) ends_.begin_round();
  for (const Bucket& bucket : buckets_) {
    bucket.memory->begin_round(gradient_passes(bucket.layout().type, unscale_, peers_.size),
                               step_lane_);
  }
}

void Round::lay_out_anew() {
  if (!changes_.pending()) return;
  bool same_order = true;
  for (std::size_t i = 0; i < forms_.size(); ++i) {
    if (options_.static_graph) forms_[i].check(parameters_[i], /*with_order=*/true);
    same_order = same_order && forms_[i].has_order(parameters_[i]);
  }
  const auto options = changes_.next(averaged_, buckets_);
  if (options && same_order) make_buckets(*options);
}

void Round::store(std::size_t index, const at::Tensor& delivered) {
  forms_[index].check(parameters_[index]);
  if (!open_) begin_round();
  drop_placeholder(parameters_[index].tensor);
  at::Tensor& gradient = parameters_[index].tensor.mutable_grad();
  if (options_.sparse_as_dense && gradient.defined() && gradient.layout() == at::kSparse) {
    gradient = gradient.to_dense();
  }
  own_present_[index] = gradient.defined();
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

void Round::give_to_stand_in(std::size_t index) {
  if (averaged_[index].tensor.is_same(parameters_[index].tensor)) return;
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
  if (averaged_[index].tensor.is_same(parameters_[index].tensor)) return;
  const at::Tensor& from = averaged_[index].tensor.mutable_grad();
  const at::Tensor& parameter = parameters_[index].tensor;
  parameter.mutable_grad() = from.defined() ? from.to(parameter.device()) : at::Tensor();
}

void Round::leave_out_missing() {
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    if (!is_missing(index)) continue;
    own_present_[index] = false;
    bucket_of(index).memory->store_absent(slots_[index].place);
    note_stored(index);
  }
}

void Round::submit(RoundEnd end, bool updates, const std::optional<Compared>& compared) {
  const at::NoGradGuard no_grad;
  const auto before = std::exchange(submitted_at_, Clock::now());
  if (before != Clock::time_point()) step_time_ = submitted_at_ - before;
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

void Round::send_record(RoundEnd end, bool updates, const std::optional<Compared>& compared) {
  if (record_.sent()) return;
  RoundFacts facts{.step_lane = step_lane_,
                   .updates = updates,
                   .end = announces() ? RoundEnd::undecided : end,
                   .compared = compared.value_or(Compared{}),
                   .arrivals = changes_.arrivals()};
  if (changes_.times_steps()) facts.step_time = step_time_;
  if (!on_host()) facts.present = own_present_;
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
           one.begun_by_all() && one.proceed() && one.memory->in_one_step();
  });
  if (!come) return false;
  const auto& places = one.layout().places;
  for (std::size_t place = 0; place < places.size(); ++place) {
    present_[places[place].gradient] = one.memory->present_anywhere(place);
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

std::string Round::awaited() const {
  std::string names;
  const auto add = [&](const std::string& name) {
    names += (names.empty() ? "" : ", ") + in_quotes(name);
  };
  for (const Bucket& bucket : buckets_) {
    if (open_ && !bucket.begun_by_all()) add(bucket.name);
  }
  for (const RoundRecord* record : {&record_, &ends_}) {
    if (!record->ready()) add(record->name());
  }
  return names;
}

OptimizerStatistics Round::finish() {
  const at::NoGradGuard no_grad;
  OptimizerStatistics cost;
  std::exception_ptr failure;
  try {
    naming_step([&] { wait(); });
    cost.waited = Clock::now() - submitted_at_;
    cost.in_flight = peers_.context.statistics().in_flight - in_flight_before_;
    cost.gradient_bytes = most_held_bytes_;
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

void Round::begin_apart() {
  for (Bucket& bucket : buckets_) bucket.begin_apart();
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
    present_[index] = on_host() ? memory.present_anywhere(place) : answer().present[index];
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
                    std::to_string(calls_before_.steps + 1) +
                    ", which that rank has not reached: every rank must make as many steps; one "
                    "whose data end earlier calls DistributedOptimizer::join()",
                error.rank(), error.tensor());
  }
}

void Round::check_one_step() {
  const bool in_one_step =
      on_host()
          ? std::ranges::all_of(buckets_, [](const Bucket& of) { return of.memory->in_one_step(); })
          : answer().one_step;
  if (in_one_step) return;
  if (ends_.sent()) ends_.wait();
  refuse_steps(calls_before_, /*updated=*/false);
}

void Round::tell_calls(const StepCalls& calls) {
  const std::int64_t own[] = {1, peers_.context.rank(), calls.steps, calls.zero_grads};
  all_calls_.assign(std::size(own) * static_cast<std::size_t>(peers_.size), 0);
  std::ranges::copy(own, all_calls_.begin() + std::ssize(own) * peers_.rank_in_set);
  all_calls_handle_ = allreduce_async(
      peers_.context, view(all_calls_),
      {.name = options_.buckets.name + ".steps", .op = ReduceOp::sum, .process_set = peers_.set});
}

void Round::refuse_steps(const StepCalls& calls, bool updated) {
  tell_calls(calls);
  all_calls_handle_.wait();
  std::map<StepCalls, std::vector<int>> ranks;
  for (auto one = all_calls_.begin(); one != all_calls_.end(); one += 4) {
    if (one[0] != 0) ranks[{one[2], one[3]}].push_back(static_cast<int>(one[1]));
  }
  std::ostringstream text;
  text << "DistributedOptimizer: the ranks are in different steps: ";
  const char* separator = "";
  for (const auto& [of_these, those] : ranks) {
    text << std::exchange(separator, ", ") << named_ranks(those)
         << (those.size() == 1 ? " is" : " are") << " in step " << of_these.steps + 1 << " after "
         << of_these.zero_grads << " calls of zero_grad()";
  }
  text
      << (updated ? ". Some parameters have been updated by these gradients, while backward() ran"
                  : ". No rank has been updated by these gradients")
      << ". Every rank must call zero_grad(), backward() and step() equally often: one that has "
         "nothing to contribute still calls step(), and a step is given up, by zero_grad(), on all "
         "ranks or on none. To go on: make a new DistributedOptimizer on every rank, and call "
         "broadcast_parameters()";
  different_steps_ = Error(ErrorCode::mismatch, text.str(), -1, options_.buckets.name);
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
  StepCalls calls = calls_;
  if (end == RoundEnd::step) calls.steps += 1;
  refuse_steps(calls, announces() && round.all_update);
}

}  // namespace hora::internal
