#include "bench/harness/timed_loop.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

class Loop {
 public:
  Loop(const Ranks& ranks, const Contender& contender) : ranks_(ranks), contender_(contender) {}

  std::vector<double> block(std::int64_t iterations) {
    std::vector<double> seconds(static_cast<std::size_t>(iterations));
    for (double& value : seconds) {
      round_ += 1;
      contender_.write(round_);
      ranks_.barrier();
      const auto begin = Clock::now();
      contender_.operate();
      value = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    ranks_.max(seconds);
    return seconds;
  }

  std::int64_t iterations_for(double seconds, const LoopOptions& options) {
    std::int64_t iterations = options.min_iterations;
    while (iterations < options.max_iterations) {
      const auto times = block(iterations);
      const double total = std::accumulate(times.begin(), times.end(), 0.0);
      if (total >= seconds) break;
      // At most tenfold: the first operations are slower than the rest.
      const double factor = std::clamp(1.2 * seconds / std::max(total, 1e-9), 1.2, 10.0);
      iterations = static_cast<std::int64_t>(static_cast<double>(iterations) * factor) + 1;
    }
    return std::min(iterations, options.max_iterations);
  }

  std::int64_t count_wrong() const { return ranks_.sum(contender_.count_wrong(round_)); }

 private:
  const Ranks& ranks_;
  const Contender& contender_;
  std::uint32_t round_ = 0;
};

}  // namespace

std::int64_t Timing::iterations() const {
  std::int64_t sum = 0;
  for (const auto& block : blocks) sum += static_cast<std::int64_t>(block.size());
  return sum;
}

std::vector<Timing> time_alternately(const Ranks& ranks, const std::vector<Contender>& contenders,
                                     const LoopOptions& options) {
  std::vector<Loop> loops;
  std::vector<std::int64_t> iterations;
  for (const Contender& contender : contenders) {
    loops.emplace_back(ranks, contender);
    iterations.push_back(
        loops.back().iterations_for(options.min_seconds / options.blocks, options));
  }
  std::vector<Timing> timings(contenders.size());
  for (int block = 0; block < options.blocks; ++block) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      timings[i].blocks.push_back(loops[i].block(iterations[i]));
      // Contenders may share memory, so what the last operation left must be read now.
      if (block + 1 == options.blocks) timings[i].wrong = loops[i].count_wrong();
    }
  }
  return timings;
}

}  // namespace bench
