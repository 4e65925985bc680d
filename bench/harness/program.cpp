#include "bench/harness/program.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "bench/harness/google_benchmark.h"

namespace bench {
namespace {

// Messages to the other ranks: this, or a group and what is selected of it.
constexpr std::int64_t stop = -1;

// Takes the library's flags. False, after a message, where some are unknown.
bool initialize_library(const char* program, std::vector<std::string> flags) {
  std::vector<char*> argv{const_cast<char*>(program)};
  for (std::string& flag : flags) argv.push_back(flag.data());
  int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  benchmark::Initialize(&argc, argv.data());
  return !benchmark::ReportUnrecognizedArguments(argc, argv.data());
}

}  // namespace

std::optional<int> Program::parse(CLI::App& app, int argc, char** argv) {
  app.allow_extras();
  app.footer(
      "Google Benchmark's flags: --benchmark_filter=REGEX, --benchmark_list_tests,\n"
      "--benchmark_min_time=SECONDS, --benchmark_out=FILE (JSON), --benchmark_repetitions=N, ...\n"
      "Run it under mpirun --bind-to none or horarun --binding none; only rank 0 reports.");
  std::ostringstream nowhere;
  const bool prints = ranks_.rank() == 0;
  try {
    app.parse(argc, argv);
    flags_ = take_flags(app.remaining());
  } catch (const CLI::ParseError& error) {
    return app.exit(error, prints ? std::cout : nowhere, prints ? std::cerr : nowhere);
  } catch (const std::invalid_argument& error) {
    if (prints) std::cerr << error.what() << '\n';
    return 1;
  }
  const bool known = !prints || initialize_library(argv[0], flags_.rest);
  if (ranks_.max(known ? 0.0 : 1.0) > 0.0) return 1;
  return std::nullopt;
}

void Program::describe(const std::string& key, const std::string& value) const {
  if (ranks_.rank() == 0) benchmark::AddCustomContext(key, value);
}

std::vector<std::size_t> Program::selected(const Group& group) const {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < group.names.size(); ++i) {
    if (matches(flags_.filter, group.names[i])) indices.push_back(i);
  }
  return indices;
}

std::optional<int> Program::list_or_refuse() const {
  std::vector<std::string> names;
  for (const Group& group : groups_) {
    for (const std::size_t i : selected(group)) names.push_back(group.names[i]);
  }
  if (names.empty()) {
    if (ranks_.rank() == 0) {
      std::cerr << "--benchmark_filter=" << flags_.filter
                << " matches no benchmark; --benchmark_list_tests shows their names\n";
    }
    return 1;
  }
  if (!flags_.list) return std::nullopt;
  if (ranks_.rank() == 0) {
    for (const std::string& name : names) std::cout << name << '\n';
  }
  return 0;
}

std::vector<Measurement> Program::conduct(std::size_t index) {
  const auto indices = selected(groups_[index]);
  std::vector<std::int64_t> message{static_cast<std::int64_t>(index)};
  message.insert(message.end(), indices.begin(), indices.end());
  ranks_.broadcast(message);
  auto measurements = groups_[index].measure(indices);
  wrong_ = wrong_ || std::any_of(measurements.begin(), measurements.end(), [](const auto& one) {
             const auto found = one.counters.find("wrong");
             return found != one.counters.end() && found->second > 0.0;
           });
  return measurements;
}

void Program::follow() {
  for (;;) {
    const auto message = ranks_.broadcast({});
    if (message.front() == stop) return;
    groups_[static_cast<std::size_t>(message.front())].measure(
        {message.begin() + 1, message.end()});
  }
}

// A repetition of one benchmark measures its whole group; the others' results are kept for them.
void Program::register_group(std::size_t index) {
  const Group& group = groups_[index];
  const auto indices = selected(group);
  auto results = std::make_shared<std::vector<std::deque<Measurement>>>(indices.size());
  for (std::size_t k = 0; k < indices.size(); ++k) {
    const auto body = [this, index, results, k](benchmark::State& state) {
      if ((*results)[k].empty()) {
        auto measurements = conduct(index);
        for (std::size_t i = 0; i < measurements.size(); ++i) {
          (*results)[i].push_back(std::move(measurements[i]));
        }
      }
      const Measurement measurement = std::move((*results)[k].front());
      (*results)[k].pop_front();
      for (auto _ : state) state.SetIterationTime(measurement.seconds);
      for (const auto& [key, value] : measurement.counters) state.counters[key] = value;
      state.counters[iterations_counter] = static_cast<double>(measurement.iterations);
      state.SetLabel(measurement.label);
    };
    benchmark::RegisterBenchmark(group.names[indices[k]].c_str(), body)
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(group.unit);
  }
}

void Program::add_whole(std::vector<std::string> names, benchmark::TimeUnit unit,
                        std::function<std::vector<Measurement>()> measure) {
  add({.names = std::move(names),
       .unit = unit,
       .measure = [measure = std::move(measure)](const std::vector<std::size_t>& selected) {
         const auto all = measure();
         std::vector<Measurement> wanted;
         for (const std::size_t index : selected) wanted.push_back(all[index]);
         return wanted;
       }});
}

int Program::run(bool columns) {
  if (const auto code = list_or_refuse()) return *code;
  if (ranks_.rank() != 0) {
    follow();
    return static_cast<int>(ranks_.broadcast({}).front());
  }
  for (std::size_t index = 0; index < groups_.size(); ++index) register_group(index);
  std::unique_ptr<benchmark::BenchmarkReporter> screen;
  if (columns && !flags_.has_format) {
    screen = std::make_unique<ColumnReporter>();
  } else {
    screen = std::make_unique<RestoringReporter>(
        std::unique_ptr<benchmark::BenchmarkReporter>(benchmark::CreateDefaultDisplayReporter()));
  }
  RestoringReporter file{std::make_unique<benchmark::JSONReporter>()};
  // The library refuses a reporter for a file that was not asked for.
  benchmark::RunSpecifiedBenchmarks(screen.get(), flags_.to_file ? &file : nullptr);
  ranks_.broadcast({stop});
  if (wrong_) std::cerr << "Wrong results: see #wrong\n";
  return static_cast<int>(ranks_.broadcast({wrong_ ? 1 : 0}).front());
}

}  // namespace bench
