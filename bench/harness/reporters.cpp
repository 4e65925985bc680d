#include "bench/harness/reporters.h"

#include <cmath>
#include <cstdio>
#include <ostream>
#include <sstream>
#include <string>

namespace bench {
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
