#include "bench/training_step/step_times.h"

#include <hora/collectives.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double cpu_seconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

rusage usage_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage;
}

struct Step {
  Clock::time_point begin;
  Clock::time_point forward;
  Clock::time_point backward;
  Clock::time_point end;
};

Step run_step(Network& network, Contender& contender) {
  Step step;
  step.begin = Clock::now();
  contender.begin();
  const auto loss = network.loss();
  step.forward = Clock::now();
  loss.backward();
  step.backward = Clock::now();
  contender.step();
  step.end = Clock::now();
  return step;
}

}  // namespace

void time_block(const hora::Context& world, int steps, int blocks, StepTimes& times,
                Network& network, Contender& contender) {
  hora::barrier(world);
  run_step(network, contender);
  std::vector<Step> timed(static_cast<std::size_t>(steps));
  const rusage before = usage_of_process();
  for (Step& step : timed) step = run_step(network, contender);
  const rusage after = usage_of_process();

  const auto add = [&timed](Blocks& blocks_of, Clock::time_point Step::*begin,
                            Clock::time_point Step::*end) {
    auto& block = blocks_of.emplace_back();
    for (const Step& step : timed) block.push_back(seconds_between(step.*begin, step.*end));
  };
  add(times.wall, &Step::begin, &Step::end);
  add(times.forward, &Step::begin, &Step::forward);
  add(times.backward, &Step::forward, &Step::backward);
  add(times.update, &Step::backward, &Step::end);
  times.cpu.push_back({(cpu_seconds(after) - cpu_seconds(before)) / steps});
  const double share = 1.0 / (static_cast<double>(steps) * blocks);
  times.page_faults += static_cast<double>(after.ru_minflt - before.ru_minflt) * share;
  times.switches += static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) * share;
  times.switches_by_force += static_cast<double>(after.ru_nivcsw - before.ru_nivcsw) * share;
}

Measurement measurement_of(const Ranks& ranks, const StepTimes& times) {
  const auto steps = flatten(times.wall);
  const auto slowest_ms = [&](const Blocks& blocks) {
    return ranks.max(quantile(flatten(blocks), 0.5)) * 1e3;
  };
  Measurement result;
  result.seconds = ranks.max(quantile(steps, 0.5));
  result.iterations = static_cast<std::int64_t>(steps.size());
  result.counters = {{"p99_ms", ranks.max(quantile(steps, 0.99)) * 1e3},
                     {"forward_ms", slowest_ms(times.forward)},
                     {"backward_ms", slowest_ms(times.backward)},
                     {"update_ms", slowest_ms(times.update)},
                     {"page_faults", ranks.max(times.page_faults)},
                     {"switches", ranks.max(times.switches)},
                     {"switches_by_force", ranks.max(times.switches_by_force)}};
  return result;
}

void add_ratios(const Ranks& ranks, const StepTimes& times, const StepTimes& base,
                const std::string& suffix, Measurement& measurement) {
  const Interval wall = median_interval(ratios_of_blocks(times.wall, base.wall));
  auto& counters = measurement.counters;
  counters["over_" + suffix] = ranks.max(wall.median);
  counters["over_" + suffix + "_low"] = ranks.max(wall.low);
  counters["over_" + suffix + "_high"] = ranks.max(wall.high);
  counters["cpu_over_" + suffix] = ranks.max(ratio_of_blocks(times.cpu, base.cpu));
}

}  // namespace bench
