#include "bench/harness/program.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <deque>
#include <iostream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

namespace bench {
namespace {

std::optional<std::string> value_of(const std::string& argument, std::string_view flag) {
  std::string_view text = argument;
  if (!text.starts_with("--") || !text.substr(2).starts_with(flag)) return std::nullopt;
  text.remove_prefix(2 + flag.size());
  if (text.empty()) return "";
  if (text.front() != '=') return std::nullopt;
  return std::string(text.substr(1));
}

double parse_seconds(const std::string& value) {
  std::string_view digits = value;
  if (digits.ends_with('s')) digits.remove_suffix(1);
  double seconds = 0.0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(seconds) ||
      seconds <= 0.0) {
    throw std::invalid_argument("--benchmark_min_time is '" + value +
                                "'; expected a positive number of seconds, such as 0.5");
  }
  return seconds;
}

std::regex compile(const std::string& expression) {
  return std::regex(expression, std::regex::extended | std::regex::nosubs);
}

}  // namespace

bool matches(const std::string& filter, const std::string& name) {
  if (filter.empty() || filter == "all") return true;
  const bool negative = filter.front() == '-';
  return std::regex_search(name, compile(filter.substr(negative ? 1 : 0))) != negative;
}

Flags take_flags(const std::vector<std::string>& arguments) {
  Flags flags;
  for (const std::string& argument : arguments) {
    if (const auto filter = value_of(argument, "benchmark_filter")) {
      flags.filter = *filter;
    } else if (const auto list = value_of(argument, "benchmark_list_tests")) {
      flags.list = *list != "false" && *list != "0";
    } else if (const auto seconds = value_of(argument, "benchmark_min_time")) {
      flags.min_time = parse_seconds(*seconds);
    } else {
      flags.to_file = flags.to_file || value_of(argument, "benchmark_out").has_value();
      flags.has_format = flags.has_format || value_of(argument, "benchmark_format").has_value();
      const auto format = value_of(argument, "benchmark_out_format");
      if (format && *format != "json") {
        throw std::invalid_argument("--benchmark_out_format is '" + *format +
                                    "'; files are written as json only");
      }
      flags.rest.push_back(argument);
    }
  }
  try {
    matches(flags.filter, "");
  } catch (const std::regex_error& error) {
    throw std::invalid_argument("--benchmark_filter is '" + flags.filter +
                                "'; expected a POSIX extended regular expression: " + error.what());
  }
  return flags;
}

namespace {

using Run = benchmark::BenchmarkReporter::Run;

double counter(const Run& run, const std::string& name) {
  const auto found = run.counters.find(name);
  return found == run.counters.end() ? 0.0 : found->second.value;
}

template <class... Values>
std::string line(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

constexpr int name_width = 36;

/// Counter that carries a measurement's number of operations through the library.
constexpr const char* iterations_counter = "iterations";

/// Gives a run its name without the library's "/iterations:1/manual_time", its true number of
/// iterations, and no CPU time: it would be that of rank 0 alone, its writing and checking
/// included.
Run restore(Run run) {
  run.run_name.iterations.clear();
  run.run_name.time_type.clear();
  run.cpu_accumulated_time = 0.0;
  // Such as the coefficient of variation of a counter that is always 0; JSON has no such numbers.
  std::erase_if(run.counters, [](const auto& one) { return !std::isfinite(one.second.value); });
  const auto found = run.counters.find(iterations_counter);
  if (found == run.counters.end()) return run;
  if (run.run_type == Run::RT_Iteration) {
    run.iterations = static_cast<benchmark::IterationCount>(found->second.value);
    run.real_accumulated_time *= found->second.value;
  }
  run.counters.erase(found);
  return run;
}

/// Passes restored runs on.
class RestoringReporter final : public benchmark::BenchmarkReporter {
 public:
  explicit RestoringReporter(benchmark::BenchmarkReporter* reporter) : reporter_(reporter) {}
  bool ReportContext(const Context& context) override {
    reporter_->SetOutputStream(&GetOutputStream());
    reporter_->SetErrorStream(&GetErrorStream());
    return reporter_->ReportContext(context);
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> restored;
    for (const Run& run : runs) restored.push_back(restore(run));
    reporter_->ReportRuns(restored);
  }
  void Finalize() override { reporter_->Finalize(); }

 private:
  std::unique_ptr<benchmark::BenchmarkReporter> reporter_;
};

/// nccl-tests' columns (https://github.com/NVIDIA/nccl-tests), with the contender in front and the
/// 99th percentile. Takes them from the counters bytes, count, p99_us, algbw, busbw and wrong, and
/// from a label "type redop".
class ColumnReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override {
    PrintBasicContext(&GetErrorStream(), context);
    GetOutputStream() << line("# %-*s %10s %10s %8s %6s %10s %10s %8s %8s %7s\n", name_width - 2,
                              "operation/contender", "size", "count", "type", "redop", "time",
                              "p99", "algbw", "busbw", "#wrong")
                      << line("# %-*s %10s %10s %8s %6s %10s %10s %8s %8s\n", name_width - 2, "",
                              "(B)", "(elements)", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)");
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      std::string type;
      std::string redop;
      std::istringstream(run.report_label) >> type >> redop;
      std::string name = restore(run).benchmark_name();
      // The size has its own column.
      const std::string size = line("/%.0f", counter(run, "bytes"));
      if (name.ends_with(size)) name.resize(name.size() - size.size());
      const double microseconds =
          run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit) * 1e6;
      GetOutputStream() << line("%-*s %10.0f %10.0f %8s %6s %10.2f %10.2f %8.2f %8.2f %7.0f\n",
                                name_width, name.c_str(), counter(run, "bytes"),
                                counter(run, "count"), type.c_str(), redop.c_str(), microseconds,
                                counter(run, "p99_us"), counter(run, "algbw"),
                                counter(run, "busbw"), counter(run, "wrong"));
    }
    GetOutputStream().flush();
  }
};

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
    screen = std::make_unique<RestoringReporter>(benchmark::CreateDefaultDisplayReporter());
  }
  RestoringReporter file(new benchmark::JSONReporter);
  // The library refuses a reporter for a file that was not asked for.
  benchmark::RunSpecifiedBenchmarks(screen.get(), flags_.to_file ? &file : nullptr);
  ranks_.broadcast({stop});
  if (wrong_) std::cerr << "Wrong results: see #wrong\n";
  return static_cast<int>(ranks_.broadcast({wrong_ ? 1 : 0}).front());
}

}  // namespace bench
