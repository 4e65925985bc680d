#include "frameworks/torch/optimizer/collective_cost.h"

#include <algorithm>
#include <utility>

#include "core/base/checked.h"

namespace hora::internal {

std::optional<CollectiveCost> fitted_cost(std::span<const TimedCollective> measured) {
  std::vector<double> slopes;
  for (const TimedCollective& a : measured) {
    for (const TimedCollective& b : measured) {
      if (a.bytes >= b.bytes) continue;
      slopes.push_back((b.seconds - a.seconds) / static_cast<double>(b.bytes - a.bytes));
    }
  }
  if (slopes.empty()) return std::nullopt;
  CollectiveCost cost{.per_byte = std::max(median(std::move(slopes)), 0.0)};
  std::vector<double> rests;
  for (const TimedCollective& one : measured) {
    rests.push_back(one.seconds - cost.seconds(one.bytes));
  }
  cost.fixed = std::max(median(std::move(rests)), 0.0);
  return cost;
}

int repetitions_of(double seconds) {
  if (seconds * most_repetitions <= timing_limit) return most_repetitions;
  return static_cast<int>(timing_limit / seconds);
}

}  // namespace hora::internal
