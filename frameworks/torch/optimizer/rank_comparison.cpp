#include "frameworks/torch/optimizer/rank_comparison.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/text.h"

namespace hora::internal {
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
    for (int shift = 0; shift < 64; shift += 8) {
      const char byte = static_cast<char>(static_cast<std::uint64_t>(value) >> shift);
      add(std::string_view(&byte, 1));
    }
  }
  std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

at::ScalarType integer_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

/// A number is the same on all ranks exactly where the least of it and the least of its complement,
/// over ranks, are complements of one another.
std::vector<std::int64_t> with_complements(const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> both = numbers;
  for (const std::int64_t number : numbers) both.push_back(~number);
  return both;
}

bool is_equal(const std::vector<std::int64_t>& least, std::size_t index) {
  return least[index] == ~least[least.size() / 2 + index];
}

TensorView view_of(std::vector<std::int64_t>& numbers) {
  return view(numbers.data(), static_cast<std::int64_t>(numbers.size()));
}

std::string number_text(double number) {
  std::ostringstream text;
  text.precision(17);
  text << number;
  return text.str();
}

}  // namespace

RankComparison::RankComparison(const Peers& peers, std::string name,
                               const std::vector<Parameter>& parameters,
                               const torch::optim::Optimizer& optimizer)
    : peers_(peers), name_(std::move(name)), parameters_(parameters), optimizer_(optimizer) {}

void RankComparison::begin(std::int64_t round, std::int64_t step) {
  if (peers_.size == 1 || round % rounds_between != 0 || round == round_) return;
  round_ = round;
  if (handle_.valid()) handle_.wait();  // of a round that has failed
  step_ = step;
  values_.clear();
  if (round == 0) add_parameters();
  add_learning_rates();
  if (round == 0) add_options();  // after learning rates, which are among them
  Checksum all;
  for (const ComparedValue& value : values_) all.add(value.bits);
  extremes_ = with_complements({all.value(), static_cast<std::int64_t>(values_.size())});
  handle_ = allreduce_async(
      peers_.context, view_of(extremes_),
      {.name = name_ + ".comparison", .op = ReduceOp::min, .process_set = peers_.set});
}

bool RankComparison::agreed() {
  if (!handle_.ready()) return false;
  if (handle_.valid()) handle_.wait();
  return round_ < 0 || is_the_same();
}

void RankComparison::end() {
  if (std::exchange(round_, -1) < 0) return;
  if (handle_.valid()) handle_.wait();
  if (!is_the_same()) refuse();
}

bool RankComparison::is_the_same() const {
  return is_equal(extremes_, 0) && is_equal(extremes_, 1);
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

void RankComparison::add_options() {
  const auto& groups = optimizer_.param_groups();
  for (std::size_t index = 0; index < groups.size(); ++index) {
    Checksum checksum;
    try {
      torch::serialize::OutputArchive archive;
      groups[index].options().serialize(archive);
      std::ostringstream bytes;
      archive.save_to(bytes);
      checksum.add(bytes.str());
    } catch (const c10::Error&) {  // an optimizer of the user's that cannot be saved
    }
    values_.push_back({ComparedValue::Kind::options, index, checksum.value()});
  }
}

void RankComparison::add_learning_rates() {
  const auto& groups = optimizer_.param_groups();
  for (std::size_t index = 0; index < groups.size(); ++index) {
    double rate = 0.0;
    try {
      rate = groups[index].options().get_lr();
    } catch (const c10::Error&) {  // one that has none
    }
    values_.push_back(
        {ComparedValue::Kind::learning_rate, index, std::bit_cast<std::int64_t>(rate)});
  }
}

void RankComparison::refuse() const {
  if (!is_equal(extremes_, 1)) {
    throw Error(ErrorCode::mismatch,
                "DistributedOptimizer: ranks have different numbers of parameter groups in the "
                "wrapped optimizer; every rank must make the same ones",
                -1, name_);
  }
  const auto indices = differing();
  const ComparedValue& first = values_[indices.front()];
  if (first.kind != ComparedValue::Kind::parameter) refuse_group(first);
  const auto of_parameters = std::count_if(indices.begin(), indices.end(), [&](std::size_t index) {
    return values_[index].kind == ComparedValue::Kind::parameter;
  });
  refuse_parameter(first, static_cast<std::size_t>(of_parameters));
}

std::vector<std::size_t> RankComparison::differing() const {
  std::vector<std::int64_t> own;
  for (const ComparedValue& value : values_) own.push_back(value.bits);
  auto least = with_complements(own);
  allreduce(peers_.context, view_of(least),
            {.name = name_ + ".differing", .op = ReduceOp::min, .process_set = peers_.set});
  std::vector<std::size_t> indices;
  for (std::size_t index = 0; index < own.size(); ++index) {
    if (!is_equal(least, index)) indices.push_back(index);
  }
  return indices;
}

std::vector<RankComparison::Holders> RankComparison::holders(const ComparedValue& value) const {
  const auto size = static_cast<std::size_t>(peers_.context.size());
  const auto own_rank = static_cast<std::size_t>(peers_.context.rank());
  std::vector<std::int64_t> numbers(2 * size, 0);  // each world rank's bits; whether it is here
  numbers[own_rank] = value.bits;
  numbers[size + own_rank] = 1;
  allreduce(peers_.context, view_of(numbers),
            {.name = name_ + ".holders", .op = ReduceOp::sum, .process_set = peers_.set});
  std::vector<Holders> all;
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (numbers[size + rank] == 0) continue;
    const auto same = std::find_if(all.begin(), all.end(), [&](const Holders& holders) {
      return holders.bits == numbers[rank];
    });
    (same == all.end() ? all.emplace_back(Holders{numbers[rank], {}}) : *same)
        .ranks.push_back(static_cast<int>(rank));
  }
  return all;
}

void RankComparison::refuse_parameter(const ComparedValue& value, std::size_t count) const {
  const auto all = holders(value);
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

void RankComparison::refuse_group(const ComparedValue& value) const {
  const bool rate = value.kind == ComparedValue::Kind::learning_rate;
  std::string text = "DistributedOptimizer: " +
                     std::string(rate ? "learning rates" : "options (such as momentum)") +
                     " of parameter group " + std::to_string(value.index) +
                     " differ between ranks in step " + std::to_string(step_ + 1) + ": ";
  const auto all = holders(value);
  for (const Holders& of : all) {
    text += (&of == &all.front() ? "" : rate ? "; " : " from ") + named_ranks(of.ranks);
    if (!rate) continue;
    text +=
        (of.ranks.size() == 1 ? " has " : " have ") + number_text(std::bit_cast<double>(of.bits));
  }
  throw Error(ErrorCode::mismatch,
              text +
                  ". Every rank must set the same ones: a scheduler must follow numbers that are "
                  "equal on all ranks, such as an averaged loss; where they are meant to "
                  "differ, set DistributedOptimizerOptions::compare_ranks to false",
              all.back().ranks.front(), name_);
}

}  // namespace hora::internal
