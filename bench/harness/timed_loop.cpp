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

namespace {

constexpr std::uint32_t period = 256;

std::int32_t common_part(std::size_t index, std::uint32_t round) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(index) + 7 * round) % period);
}

std::int32_t base_of(int rank) {
  return static_cast<std::int32_t>(period) * rank;
}

/// Elements that are not base + factor * (what all ranks have in common).
std::int64_t count_wrong(const float* data, std::size_t count, std::int32_t base,
                         std::int32_t factor, std::uint32_t round, std::size_t first) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += data[i] != static_cast<float>(base + factor * common_part(first + i, round)) ? 1 : 0;
  }
  return wrong;
}

}  // namespace

void write_values(float* data, std::size_t count, int rank, std::uint32_t round,
                  std::size_t first) {
  const std::int32_t base = base_of(rank);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(base + common_part(first + i, round));
  }
}

std::int64_t count_wrong_values(const float* data, std::size_t count, int rank, std::uint32_t round,
                                std::size_t first) {
  return count_wrong(data, count, base_of(rank), 1, round, first);
}

std::int64_t count_wrong_sums(const float* data, std::size_t count, int ranks, std::uint32_t round,
                              std::size_t first) {
  return count_wrong(data, count, base_of(ranks * (ranks - 1) / 2), ranks, round, first);
}

}  // namespace bench
