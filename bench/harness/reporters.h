/// How results are shown.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

namespace bench {

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
