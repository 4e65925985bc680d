#include "frameworks/torch/optimizer/collective_timing.h"

#include <hora/hora.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

namespace hora::internal {
namespace {

/// The slowest rank's time.
double agreed_seconds(const Peers& peers, const std::string& name, double seconds) {
  allreduce(peers.context, view(&seconds, 1),
            {.name = name + ".agreed", .op = ReduceOp::max, .process_set = peers.set});
  return seconds;
}

/// Time of the shortest of several allreduces: what else the machine does makes others longer.
double shortest(const Peers& peers, const std::string& name, const TensorView& values,
                int repetitions) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repetitions; ++i) {
    // As gradients, which each rank has just written.
    std::fill_n(static_cast<float*>(values.data), values.elements(), 1.0F);
    const auto begin = std::chrono::steady_clock::now();
    allreduce(peers.context, values, {.name = name, .op = ReduceOp::sum, .process_set = peers.set});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count());
  }
  return agreed_seconds(peers, name, least);
}

}  // namespace

std::optional<CollectiveCost> timed_collectives(const Peers& peers, const std::string& name) {
  if (peers.size == 1) return std::nullopt;
  agreed_seconds(peers, name, 0.0);  // ranks wait here for one another
  std::vector<TimedCollective> measured;
  std::size_t bytes = least_timed_bytes;
  double expected = 0.0;
  while (measured.size() < timed_sizes && repetitions_of(expected) > 0) {
    const Buffer buffer(peers.context, bytes);
    const TensorView values = view(reinterpret_cast<float*>(buffer.data()),
                                   static_cast<std::int64_t>(bytes / sizeof(float)));
    double seconds = shortest(peers, name, values, 1);
    if (const int more = repetitions_of(seconds); more > 0) {
      seconds =
          shortest(peers, name, values, more);  // the first one has made pages and connections
    }
    measured.push_back({bytes, seconds});
    expected = seconds * static_cast<double>(timed_growth);
    bytes *= timed_growth;
  }
  return fitted_cost(measured);
}

}  // namespace hora::internal
