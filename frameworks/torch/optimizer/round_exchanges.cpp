#include "frameworks/torch/optimizer/round_exchanges.h"

#include <hora/hora.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "frameworks/torch/optimizer/step_counters.h"

namespace hora::internal {

PresenceExchange::PresenceExchange(const Peers& peers, std::string name, std::size_t gradients)
    : peers_(peers), name_(std::move(name)), present_(gradients, 1) {}

void PresenceExchange::begin(std::size_t step_lane) {
  // The former round's, where that has failed: the name must be free.
  if (handle_.valid()) handle_.wait();
  counts_ = present_;
  counts_.resize(present_.size() + step_lanes, 0);
  counts_[present_.size() + step_lane] = 1;
  if (peers_.size == 1) return;
  handle_ = allreduce_async(peers_.context,
                            view(counts_.data(), static_cast<std::int64_t>(counts_.size())),
                            {.name = name_, .op = ReduceOp::sum, .process_set = peers_.set});
}

void PresenceExchange::wait() {
  if (handle_.valid()) handle_.wait();
}

bool PresenceExchange::in_one_step() const {
  const auto lanes = counts_.end() - static_cast<std::ptrdiff_t>(step_lanes);
  return std::count(lanes, counts_.end(), 0) + 1 >= static_cast<std::ptrdiff_t>(step_lanes);
}

void PresenceExchange::end() {
  std::fill(present_.begin(), present_.end(), 1);
}

namespace {

constexpr std::int64_t reported_elements = 4;
static_assert(sizeof(RankSteps) == reported_elements * sizeof(std::int64_t));

}  // namespace

StepsExchange::StepsExchange(const Peers& peers, std::string name)
    : peers_(peers), name_(std::move(name)) {}

void StepsExchange::send(const StepCalls& calls) {
  all_.resize(static_cast<std::size_t>(peers_.size));
  all_[static_cast<std::size_t>(peers_.rank_in_set)] = {1, peers_.context.rank(), calls.steps,
                                                        calls.zero_grads};
  handle_ =
      allreduce_async(peers_.context, view(&all_.front().reported, reported_elements * peers_.size),
                      {.name = name_ + ".steps", .op = ReduceOp::sum, .process_set = peers_.set});
}

Error StepsExchange::error(bool updated) {
  handle_.wait();
  std::map<StepCalls, std::vector<int>> ranks;
  for (const RankSteps& one : all_) {
    if (one.reported == 0) continue;
    ranks[{one.steps, one.zero_grads}].push_back(static_cast<int>(one.rank));
  }
  return {ErrorCode::mismatch, "DistributedOptimizer: " + different_steps_text(ranks, updated), -1,
          name_};
}

RoundEndExchange::RoundEndExchange(const Peers& peers, std::string name)
    : peers_(peers), name_(std::move(name)) {}

void RoundEndExchange::send(RoundEnd end) {
  if (std::exchange(sent_, true)) return;
  counts_ = {end == RoundEnd::step, end == RoundEnd::discard};
  if (peers_.size == 1) return;
  handle_ = allreduce_async(peers_.context, view(counts_.data(), 2),
                            {.name = name_, .op = ReduceOp::sum, .process_set = peers_.set});
}

bool RoundEndExchange::agree() {
  sent_ = false;
  if (handle_.valid()) handle_.wait();
  return counts_[0] == 0 || counts_[1] == 0;
}

}  // namespace hora::internal
