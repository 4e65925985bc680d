#include "frameworks/torch/optimizer/round_record.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/process_set.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <map>
#include <sstream>
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

void StepsExchange::send(const StepCalls& calls) {
  const std::int64_t own[] = {1, peers_.context.rank(), calls.steps, calls.zero_grads};
  all_.assign(std::size(own) * static_cast<std::size_t>(peers_.size), 0);
  std::ranges::copy(own, all_.begin() + std::ssize(own) * peers_.rank_in_set);
  handle_ =
      allreduce_async(peers_.context, view_of(all_),
                      {.name = name_ + ".steps", .op = ReduceOp::sum, .process_set = peers_.set});
}

Error StepsExchange::error(bool updated) {
  handle_.wait();
  std::map<StepCalls, std::vector<int>> ranks;
  for (auto one = all_.begin(); one != all_.end(); one += 4) {
    if (one[0] != 0) ranks[{one[2], one[3]}].push_back(static_cast<int>(one[1]));
  }
  std::ostringstream text;
  text << "DistributedOptimizer: the ranks are in different steps: ";
  const char* separator = "";
  for (const auto& [calls, those] : ranks) {
    text << std::exchange(separator, ", ") << named_ranks(those)
         << (those.size() == 1 ? " is" : " are") << " in step " << calls.steps + 1 << " after "
         << calls.zero_grads << " calls of zero_grad()";
  }
  text
      << (updated ? ". Some parameters have been updated by these gradients, while backward() ran"
                  : ". No rank has been updated by these gradients")
      << ". Every rank must call zero_grad(), backward() and step() equally often: one that has "
         "nothing to contribute still calls step(), and a step is given up, by zero_grad(), on all "
         "ranks or on none. To go on: make a new DistributedOptimizer on every rank, and call "
         "broadcast_parameters()";
  return {ErrorCode::mismatch, text.str(), -1, name_};
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
    add_groups(ComparedValue::Kind::learning_rate);
    if (round == 0) add_groups(ComparedValue::Kind::options);  // learning rates are among them
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
  allreduce(peers_.context, view_of(table),
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

}  // namespace hora::internal
