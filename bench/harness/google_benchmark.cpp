#include "bench/harness/google_benchmark.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <ostream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

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

}  // namespace

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

bool RestoringReporter::ReportContext(const Context& context) {
  reporter_->SetOutputStream(&GetOutputStream());
  reporter_->SetErrorStream(&GetErrorStream());
  return reporter_->ReportContext(context);
}

void RestoringReporter::ReportRuns(const std::vector<Run>& runs) {
  std::vector<Run> restored;
  for (const Run& run : runs) restored.push_back(restore(run));
  reporter_->ReportRuns(restored);
}

void RestoringReporter::Finalize() {
  reporter_->Finalize();
}

bool ColumnReporter::ReportContext(const Context& context) {
  PrintBasicContext(&GetErrorStream(), context);
  GetOutputStream() << line("# %-*s %10s %10s %8s %6s %10s %10s %8s %8s %7s\n", name_width - 2,
                            "operation/contender", "size", "count", "type", "redop", "time", "p99",
                            "algbw", "busbw", "#wrong")
                    << line("# %-*s %10s %10s %8s %6s %10s %10s %8s %8s\n", name_width - 2, "",
                            "(B)", "(elements)", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)");
  return true;
}

void ColumnReporter::ReportRuns(const std::vector<Run>& runs) {
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
                              counter(run, "p99_us"), counter(run, "algbw"), counter(run, "busbw"),
                              counter(run, "wrong"));
  }
  GetOutputStream().flush();
}

}  // namespace bench
