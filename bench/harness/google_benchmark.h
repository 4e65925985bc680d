/// What ranks need of Google Benchmark: its flags that all must agree about (pure), and how its
/// results are shown.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

namespace bench {

struct Flags {
  /// --benchmark_filter: a POSIX extended regular expression over names; "-" in front: those that
  /// do not match; empty or "all": every one.
  std::string filter;
  bool list = false;              ///< --benchmark_list_tests
  double min_time = 0.5;          ///< --benchmark_min_time: seconds, with or without an "s"
  bool to_file = false;           ///< --benchmark_out
  bool has_format = false;        ///< --benchmark_format
  std::vector<std::string> rest;  ///< for the library: all but the first three
};

/// Throws std::invalid_argument, naming the flag and its value, for a filter that is no regular
/// expression and a time that is no positive number.
Flags take_flags(const std::vector<std::string>& arguments);

bool matches(const std::string& filter, const std::string& name);

/// Counter that carries a measurement's number of operations through the library.
inline constexpr const char* iterations_counter = "iterations";

/// Gives a run its name without the library's "/iterations:1/manual_time", its true number of
/// iterations, and no CPU time: it would be that of rank 0 alone, its writing and checking
/// included.
benchmark::BenchmarkReporter::Run restore(benchmark::BenchmarkReporter::Run run);

/// Passes restored runs on.
class RestoringReporter : public benchmark::BenchmarkReporter {
 public:
  explicit RestoringReporter(std::unique_ptr<benchmark::BenchmarkReporter> reporter)
      : reporter_(std::move(reporter)) {}
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

 private:
  std::unique_ptr<benchmark::BenchmarkReporter> reporter_;
};

/// nccl-tests' columns (https://github.com/NVIDIA/nccl-tests), with the contender in front and the
/// 99th percentile. Takes them from the counters bytes, count, p99_us, algbw, busbw and wrong, and
/// from a label "type redop".
class ColumnReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
};

}  // namespace bench
