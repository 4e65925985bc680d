#include "frameworks/torch/optimizer/round_record.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/process_set.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "core/base/text.h"
#include "frameworks/torch/optimizer/layout.h"

namespace hora::internal {
namespace {

constexpr std::int64_t most_steps = 1;
constexpr std::int64_t most_zero_grads = 3;
static_assert((most_steps + 1) * (most_zero_grads + 1) == step_lanes);

TensorView view_of(std::vector<std::int64_t>& numbers) {
  return view(numbers.data(), static_cast<std::int64_t>(numbers.size()));
}

}  // namespace

void StepCounter::begin_round() {
  const std::int64_t steps = std::min(calls_.steps - before_.steps, most_steps);
  const std::int64_t zero_grads = std::min(calls_.zero_grads - before_.zero_grads, most_zero_grads);
  lane_ = static_cast<std::size_t>(steps * (most_zero_grads + 1) + zero_grads);
  before_ = calls_;
}

std::string different_steps_text(const std::map<StepCalls, std::vector<int>>& ranks, bool updated) {
  std::string text = "the ranks are in different steps: ";
  const char* separator = "";
  for (const auto& [calls, those] : ranks) {
    text += separator + named_ranks(those) + (those.size() == 1 ? " is" : " are") + " in step " +
            std::to_string(calls.steps + 1) + " after " + std::to_string(calls.zero_grads) +
            " calls of zero_grad()";
    separator = ", ";
  }
  text += updated ? ". Some parameters have been updated by these gradients, while backward() ran"
                  : ". No rank has been updated by these gradients";
  return text +
         ". Every rank must call zero_grad(), "
         "backward() and step() equally often: one that has nothing to contribute still calls "
         "step(), and a step is given up, by zero_grad(), on all ranks or on none. To go on: make "
         "a new DistributedOptimizer on every rank, and call broadcast_parameters()";
}

namespace {

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
  answer.one_step =
      std::count_if(lanes.begin(), lanes.end(), [](auto set) { return set > 0; }) <= 1;
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

RoundRecord::RoundRecord(const Peers& peers, std::string name)
    : peers_(peers), name_(std::move(name)) {}

void RoundRecord::begin_round() {
  sent_ = false;
  answer_ = {};
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
  handle_ = allreduce_async(peers_.context, view_of(message_),
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

constexpr std::size_t reported_elements = 4;

}  // namespace

void StepsExchange::send(const StepCalls& calls) {
  all_.assign(reported_elements * static_cast<std::size_t>(peers_.size), 0);
  const std::int64_t own[reported_elements] = {1, peers_.context.rank(), calls.steps,
                                               calls.zero_grads};
  std::copy(std::begin(own), std::end(own),
            all_.begin() + static_cast<std::ptrdiff_t>(reported_elements) * peers_.rank_in_set);
  handle_ =
      allreduce_async(peers_.context, view_of(all_),
                      {.name = name_ + ".steps", .op = ReduceOp::sum, .process_set = peers_.set});
}

Error StepsExchange::error(bool updated) {
  handle_.wait();
  std::map<StepCalls, std::vector<int>> ranks;
  for (auto one = all_.begin(); one != all_.end(); one += reported_elements) {
    if (one[0] != 0) ranks[{one[2], one[3]}].push_back(static_cast<int>(one[1]));
  }
  return {ErrorCode::mismatch, "DistributedOptimizer: " + different_steps_text(ranks, updated), -1,
          name_};
}

namespace {

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
class Checksum {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
    }
  }
  void add(std::int64_t value) {
    add(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
  }
  std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

at::ScalarType integer_of(const at::Tensor& tensor) {
  return tensor.element_size() == 2   ? at::kShort
         : tensor.element_size() == 4 ? at::kInt
                                      : at::kLong;
}

/// An optimizer of the user's that cannot be saved gives the checksum of nothing.
std::int64_t checksum_of(const torch::optim::OptimizerOptions& options) {
  Checksum checksum;
  try {
    torch::serialize::OutputArchive archive;
    options.serialize(archive);
    std::ostringstream bytes;
    archive.save_to(bytes);
    checksum.add(bytes.str());
  } catch (const c10::Error&) {
  }
  return checksum.value();
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
                               const torch::optim::Optimizer& optimizer)
    : peers_(peers), name_(std::move(name)), parameters_(parameters), optimizer_(optimizer) {}

std::optional<Compared> RankComparison::begin(std::int64_t round, std::int64_t step) {
  if (peers_.size == 1 || round % rounds_between != 0) return std::nullopt;
  if (round != round_) {
    round_ = round;
    step_ = step;
    values_.clear();
    if (round == 0) add_parameters();
    add_groups(/*options=*/false);
    if (round == 0) add_groups(/*options=*/true);  // after learning rates, which are among them
  }
  Checksum all;
  for (const ComparedValue& value : values_) all.add(value.bits);
  return Compared{all.value(), static_cast<std::int64_t>(values_.size())};
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
    const at::Tensor bits = parameter.tensor.detach().view(integer_of(parameter.tensor));
    sums.push_back(at::sum(bits, at::kLong).to(parameters_.front().tensor.device()));
  }
  if (sums.empty()) return;
  const at::Tensor all = at::stack(sums).cpu();
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    values_.push_back({ComparedValue::Kind::parameter, index, all.data_ptr<std::int64_t>()[index]});
  }
}

void RankComparison::add_groups(bool options) {
  using Kind = ComparedValue::Kind;
  const auto& groups = optimizer_.param_groups();
  for (std::size_t index = 0; index < groups.size(); ++index) {
    const auto& of_group = groups[index].options();
    values_.push_back(options
                          ? ComparedValue{Kind::options, index, checksum_of(of_group)}
                          : ComparedValue{Kind::learning_rate, index,
                                          std::bit_cast<std::int64_t>(learning_rate(of_group))});
  }
}

void RankComparison::refuse() const {
  const auto members = ranks_of(peers_.context, peers_.set);
  const std::size_t columns = values_.size() + 1;  // the first one: that the rank is here
  std::vector<std::int64_t> table(columns * members.size(), 0);
  auto own = table.begin() + static_cast<std::ptrdiff_t>(columns) * peers_.rank_in_set;
  *own++ = 1;
  for (const ComparedValue& value : values_) *own++ = value.bits;
  allreduce(peers_.context, view_of(table),
            {.name = name_ + ".differing", .op = ReduceOp::sum, .process_set = peers_.set});
  const auto holders_of = [&](std::size_t value) {
    std::vector<Holders> all;
    for (std::size_t row = 0; row < members.size(); ++row) {
      if (table[row * columns] == 0) continue;
      const std::int64_t bits = table[row * columns + 1 + value];
      const auto same =
          std::find_if(all.begin(), all.end(), [&](const auto& of) { return of.bits == bits; });
      (same == all.end() ? all.emplace_back(Holders{bits, {}}) : *same)
          .ranks.push_back(members[row]);
    }
    return all;
  };
  const ComparedValue* first = nullptr;
  std::vector<Holders> of_first;
  std::size_t parameters = 0;
  for (std::size_t value = 0; value < values_.size(); ++value) {
    auto holders = holders_of(value);
    if (holders.size() < 2) continue;
    if (values_[value].kind == ComparedValue::Kind::parameter) parameters += 1;
    if (first != nullptr) continue;
    first = &values_[value];
    of_first = std::move(holders);
  }
  if (first->kind == ComparedValue::Kind::parameter) refuse_parameter(*first, of_first, parameters);
  refuse_group(*first, of_first);
}

void RankComparison::refuse_parameter(const ComparedValue& value, const std::vector<Holders>& all,
                                      std::size_t count) const {
  std::vector<int> others;
  for (auto of = all.begin() + 1; of != all.end(); ++of) {
    others.insert(others.end(), of->ranks.begin(), of->ranks.end());
  }
  std::sort(others.begin(), others.end());
  const std::string& parameter = parameters_[value.index].name;
  throw Error(
      ErrorCode::mismatch,
      "DistributedOptimizer: parameters differ between ranks in the first step: '" + parameter +
          "'" + (count > 1 ? " and " + std::to_string(count - 1) + " more" : std::string()) + ": " +
          named_ranks(others) + " from rank " + std::to_string(all.front().ranks.front()) +
          ". Call broadcast_parameters(context, module) before training; where they are "
          "meant to differ, set DistributedOptimizerOptions::compare_ranks to false",
      others.front(), parameter);
}

void RankComparison::refuse_group(const ComparedValue& value,
                                  const std::vector<Holders>& all) const {
  const bool rate = value.kind == ComparedValue::Kind::learning_rate;
  std::ostringstream text;
  text.precision(17);
  text << "DistributedOptimizer: " << (rate ? "learning rates" : "options (such as momentum)")
       << " of parameter group " << value.index << " differ between ranks in step " << step_ + 1
       << ": ";
  const char* separator = "";
  for (const Holders& of : all) {
    text << separator << named_ranks(of.ranks);
    separator = rate ? "; " : " from ";
    if (rate) {
      text << (of.ranks.size() == 1 ? " has " : " have ") << std::bit_cast<double>(of.bits);
    }
  }
  text << ". Every rank must set the same ones: a scheduler must follow numbers that are equal on "
          "all ranks, such as an averaged loss; where they are meant to differ, set "
          "DistributedOptimizerOptions::compare_ranks to false";
  throw Error(ErrorCode::mismatch, text.str(), all.back().ranks.front(), name_);
}

}  // namespace hora::internal
