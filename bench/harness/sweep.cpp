#include "bench/harness/sweep.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace bench {

void SweepOptions::add_to(CLI::App& app) {
  const auto add_bytes = [&app](const char* name, std::size_t& bytes, const char* what) {
    app.add_option(name, bytes, what)
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(std::size_t{4}, std::size_t{1} << 30))
        ->capture_default_str();
  };
  add_bytes("--min-bytes", min_bytes, "smallest tensor");
  add_bytes("--max-bytes", max_bytes, "largest tensor");
  app.add_option("--factor", factor, "between sizes")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--blocks", blocks, "blocks of each contender")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

std::vector<std::size_t> SweepOptions::sizes(std::size_t unit) const {
  std::vector<std::size_t> result;
  for (std::size_t bytes = min_bytes; bytes <= max_bytes;
       bytes *= static_cast<std::size_t>(factor)) {
    result.push_back(std::max(bytes / unit, std::size_t{1}) * unit);
  }
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

Sweep::Sweep(const Ranks& ranks, Program& program, const SweepOptions& options,
             std::string operation, std::vector<Bar> bars)
    : ranks_(ranks),
      program_(program),
      options_(options),
      operation_(std::move(operation)),
      bars_(std::move(bars)) {}

void Sweep::add(const Volume& volume, const std::vector<std::string>& names,
                std::function<std::unique_ptr<Contenders>()> make) {
  Group group;
  for (const std::string& name : names) {
    group.names.push_back(operation_ + "/" + name + "/" + std::to_string(volume.bytes));
  }
  group.measure = [=, this](const std::vector<std::size_t>& selected) {
    std::vector<std::string> chosen;
    for (const std::size_t i : selected) chosen.push_back(names[i]);
    return measure(volume, chosen, *make());
  };
  program_.add(std::move(group));
}

std::vector<Measurement> Sweep::measure(const Volume& volume, const std::vector<std::string>& names,
                                        Contenders& memory) {
  std::vector<Contender> contenders;
  for (const std::string& name : names) contenders.push_back(memory.contender(name));
  LoopOptions loop;
  loop.min_seconds = program_.min_time();
  loop.blocks = options_.blocks;
  const auto timings = time_alternately(ranks_, contenders, loop);

  std::map<std::string, Blocks> blocks;
  for (std::size_t i = 0; i < names.size(); ++i) blocks[names[i]] = timings[i].blocks;
  const Ratios ratios = ratios_of(bars_, blocks);
  if (!ratios.empty()) ratios_[volume.bytes] = ratios;
  std::vector<Measurement> measurements;
  seconds_.clear();
  for (std::size_t i = 0; i < names.size(); ++i) {
    Measurement& measurement = measurements.emplace_back(measurement_of(timings[i], volume));
    measurement.counters.merge(ratios_of_contender(ratios, names[i]));
    seconds_[names[i]] = measurement.seconds;
  }
  return measurements;
}

Measurement Sweep::measurement_of(const Timing& timing, const Volume& volume) const {
  const auto seconds = flatten(timing.blocks);
  Measurement result;
  result.seconds = quantile(seconds, 0.5);
  result.iterations = timing.iterations();
  result.label = volume.label;
  const auto bytes = static_cast<double>(volume.bytes);
  const double algorithm_bandwidth = bytes / result.seconds / 1e9;
  result.counters = {{"bytes", bytes},
                     {"count", bytes / static_cast<double>(volume.element_bytes)},
                     {"tensors", static_cast<double>(volume.tensors)},
                     {"p99_us", quantile(seconds, 0.99) * 1e6},
                     {"algbw", algorithm_bandwidth},
                     {"busbw", algorithm_bandwidth * volume.bus_factor},
                     {"wrong", static_cast<double>(timing.wrong)}};
  return result;
}

std::string Sweep::table(bool judge) const {
  return ratios_.empty() ? "" : table_of_ratios(operation_, bars_, ratios_, judge);
}

std::string malloc_thresholds(bool raised) {
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return "from the environment";
  return raised ? "raised by hora::init" : "the C library's";
}

}  // namespace bench
