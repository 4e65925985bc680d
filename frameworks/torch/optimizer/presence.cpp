#include "frameworks/torch/optimizer/presence.h"

#include <algorithm>
#include <utility>

#include "frameworks/torch/optimizer/step_calls.h"

namespace hora {

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

}  // namespace hora
