/// What agreement between ranks costs: from the last submission to the result, and processor time
/// while ranks have nothing to do or wait for each other. See ../README.md.
#include <hora/hora.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/comparison.h"
#include "bench/harness/program.h"
#include "bench/negotiation/measurements.h"

namespace {

using namespace bench;

struct Options {
  double idle_seconds = 10.0;
  double wait_seconds = 5.0;
};

// A counter "pass" of 1 says that the value keeps to the bar.
Measurement judged(Measurement measurement, const std::string& bar_name, double bar, double value) {
  measurement.counters[bar_name] = bar;
  measurement.counters["pass"] = value <= bar ? 1.0 : 0.0;
  return measurement;
}

Measurement measurement_of(const Latency& latency, double bar_us) {
  Measurement result;
  result.seconds = quantile(latency.seconds, 0.5);
  result.iterations = static_cast<std::int64_t>(latency.seconds.size());
  result.counters = {{"p99_us", quantile(latency.seconds, 0.99) * 1e6}, {"wrong", latency.wrong}};
  return judged(std::move(result), "bar_us", bar_us, quantile(latency.seconds, 0.5) * 1e6);
}

Measurement measurement_of(const ProcessorTime& time, double bar_percent) {
  Measurement result;
  result.seconds = time.seconds;
  const double percent = 100.0 * time.seconds / time.elapsed_seconds;
  result.counters = {
      {"cpu_percent", percent}, {"elapsed_s", time.elapsed_seconds}, {"wrong", time.wrong}};
  return judged(std::move(result), "bar_percent", bar_percent, percent);
}

// In turn with a bare wake-up, which machines differ in most.
Measurement beside_wakeup(const hora::Context& world, const Ranks& ranks, int iterations,
                          double bar_us) {
  constexpr int kBlocks = 5;
  Latency all;
  std::vector<double> wakeups, ratios;
  for (int block = 0; block < kBlocks; ++block) {
    const Latency wakeup = futex_wakeup(ranks, iterations / kBlocks);
    const Latency ready = last_submission_to_ready(world, ranks, iterations / kBlocks);
    ratios.push_back(quantile(ready.seconds, 0.5) / quantile(wakeup.seconds, 0.5));
    wakeups.insert(wakeups.end(), wakeup.seconds.begin(), wakeup.seconds.end());
    all.seconds.insert(all.seconds.end(), ready.seconds.begin(), ready.seconds.end());
    all.wrong += ready.wrong;
  }
  Measurement result = measurement_of(all, bar_us);
  result.counters["futex_us"] = quantile(wakeups, 0.5) * 1e6;
  result.counters["over_futex"] = quantile(ratios, 0.5);
  return result;
}

void add(Program& program, const std::string& name, std::function<Measurement()> measure) {
  program.add({.names = {"negotiation/" + name},
               .measure = [measure = std::move(measure)](const std::vector<std::size_t>&) {
                 return std::vector<Measurement>{measure()};
               }});
}

void add_latencies(Program& program, const hora::Context& world, const Ranks& ranks) {
  // One operation takes its 1 ms of computing, or 3 ms of sleep, besides.
  const int iterations = std::max(20, static_cast<int>(program.min_time() * 1000.0));
  if (ranks.on_one_host()) {
    const double bar_us = world.cross_size() == 1 ? 25.0 : 250.0;
    add(program, "last_submission_to_ready", [&world, &ranks, iterations, bar_us] {
      last_submission_to_ready(world, ranks, 10);
      return beside_wakeup(world, ranks, iterations, bar_us);
    });
  } else {
    program.describe("last_submission_to_ready", "left out: needs ranks that share a clock");
  }
  add(program, "4_bytes_from_idle", [&world, &ranks, iterations] {
    four_bytes_from_idle(world, ranks, 10);
    return measurement_of(four_bytes_from_idle(world, ranks, iterations), 60.0);
  });
}

void add_processor_times(Program& program, const hora::Context& world, const Ranks& ranks,
                         const Options& options) {
  add(program, "cpu_nothing_submitted", [&ranks, &options] {
    return measurement_of(with_nothing_submitted(ranks, options.idle_seconds), 0.1);
  });
  const int sleeper = ranks.size() - 1;
  const auto neighbours = [&world](int rank) {
    for (int node = 0; node < world.cross_size(); ++node) {
      const auto& members = world.ranks_of_node(node);
      if (std::find(members.begin(), members.end(), rank) != members.end()) return members.size();
    }
    return std::size_t{0};
  };
  if (neighbours(sleeper) > 1) {
    add(program, "cpu_waiting_on_own_node", [&world, &ranks, &options] {
      return measurement_of(waiting_for_sleeper(world, ranks, options.wait_seconds, false), 0.1);
    });
  }
  if (world.cross_size() > 1) {
    add(program, "cpu_waiting_on_another_node", [&world, &ranks, &options] {
      return measurement_of(waiting_for_sleeper(world, ranks, options.wait_seconds, true), 1.0);
    });
  }
}

// What the record takes of a collective: the difference of the medians, beside their own spread.
Measurement measurement_of(const RecordCost& cost, const std::vector<double>& times,
                           double bar_ns) {
  const double on = quantile(times, 0.5);
  const double off = quantile(cost.off, 0.5);
  Measurement result;
  result.seconds = on;
  result.iterations = static_cast<std::int64_t>(times.size());
  result.counters = {{"off_ns", off * 1e9},
                     {"cost_ns", (on - off) * 1e9},
                     {"least_cost_ns", (quantile(times, 0.0) - quantile(cost.off, 0.0)) * 1e9},
                     {"spread_ns", (quantile(cost.off, 0.75) - quantile(cost.off, 0.25)) * 1e9},
                     {"wrong", cost.wrong}};
  return judged(std::move(result), "bar_ns", bar_ns, (on - off) * 1e9);
}

void add_record(Program& program, hora::Context& world, const Ranks& ranks) {
  const int iterations = std::max(2000, static_cast<int>(program.min_time() * 20000.0));
  program.add({.names = {"negotiation/flight_record", "negotiation/flight_record_watched"},
               .measure = [&world, &ranks, iterations](const std::vector<std::size_t>& selected) {
                 constexpr int kRounds = 20;
                 const RecordCost cost = flight_record(world, ranks, iterations, kRounds);
                 const std::vector<Measurement> both{measurement_of(cost, cost.on, 300.0),
                                                     measurement_of(cost, cost.watched, 1000.0)};
                 std::vector<Measurement> wanted;
                 for (const std::size_t index : selected) wanted.push_back(both[index]);
                 return wanted;
               }});
}

}  // namespace

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  const Ranks ranks;
  Program program(ranks);
  Options options;
  CLI::App app("Times negotiation, and the processor time of ranks that wait");
  app.add_option("--idle-seconds", options.idle_seconds, "with nothing submitted")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--wait-seconds", options.wait_seconds, "that a rank lets the others wait")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (const auto code = program.parse(app, argc, argv)) return *code;

  program.describe("ranks", std::to_string(world.size()));
  program.describe("nodes", std::to_string(world.cross_size()));
  add_latencies(program, world, ranks);
  add_processor_times(program, world, ranks, options);
  add_record(program, world, ranks);
  return program.run();
}
