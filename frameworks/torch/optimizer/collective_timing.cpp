#include "frameworks/torch/optimizer/collective_timing.h"

#include <hora/hora.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace hora::internal {
namespace {

/// Of the slowest rank.
double agreed_seconds(const Peers& peers, const std::string& name, double seconds) {
  allreduce(peers.context, view(&seconds, 1),
            {.name = name + ".agreed", .op = ReduceOp::max, .process_set = peers.set});
  return seconds;
}

double seconds_of_one(const Peers& peers, const std::string& name, const TensorView& values) {
  const auto begin = std::chrono::steady_clock::now();
  allreduce(peers.context, values, {.name = name, .op = ReduceOp::sum, .process_set = peers.set});
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::optional<CollectiveCost> timed_collectives(const Peers& peers, const std::string& name) {
  if (peers.size == 1) return std::nullopt;
  std::vector<TimedCollective> measured;
  std::size_t bytes = least_timed_bytes;
  int repetitions = most_repetitions;
  while (repetitions > 0 && measured.size() < timed_sizes) {
    const Buffer buffer(peers.context, bytes);
    auto* const values = reinterpret_cast<float*>(buffer.data());
    const auto elements = static_cast<std::int64_t>(bytes / sizeof(float));
    std::vector<double> times;
    for (int i = 0; i < repetitions + 1; ++i) {
      // As gradients, which each rank has just written.
      std::fill_n(values, elements, 1.0F);
      const double seconds = seconds_of_one(peers, name, view(values, elements));
      if (i > 0) times.push_back(seconds);  // with the first one ranks wait for one another
    }
    // What else the machine does makes one longer.
    measured.push_back({bytes, agreed_seconds(peers, name, *std::ranges::min_element(times))});
    repetitions = repetitions_after(measured.back().seconds);
    bytes *= timed_growth;
  }
  return fitted_cost(measured);
}

}  // namespace hora::internal
