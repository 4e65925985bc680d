/// Google Benchmark under mpirun.
///
/// By itself the library lets each rank pick its own number of iterations and every rank write the
/// same file, which hangs. Here only rank 0 runs it: whenever it asks for a result, rank 0 sends
/// the others what to measure, and all measure it together (timed_loop.h).
#pragma once

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/ranks.h"

namespace bench {

/// Google Benchmark's flags that all ranks must agree about.
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

struct Measurement {
  double seconds = 0.0;  ///< of one operation
  std::int64_t iterations = 1;
  /// A value above 0 under "wrong" makes the program fail.
  std::map<std::string, double> counters = {};
  std::string label = {};
};

/// Benchmarks that are measured together because their blocks alternate.
struct Group {
  std::vector<std::string> names;
  benchmark::TimeUnit unit = benchmark::kMicrosecond;
  /// Called on every rank with the indices of the names that --benchmark_filter lets through, at
  /// least one. Gives one measurement for each; only rank 0's count.
  std::function<std::vector<Measurement>(const std::vector<std::size_t>& selected)> measure;
};

/// Thread rule: one thread.
class Program {
 public:
  explicit Program(const Ranks& ranks) : ranks_(ranks) {}

  /// Collective. Takes the options of `app` and Google Benchmark's flags; prints errors and --help
  /// on rank 0. Gives an exit code where the program is to end now.
  std::optional<int> parse(CLI::App& app, int argc, char** argv);

  /// --benchmark_min_time: seconds of timed operation for each benchmark.
  double min_time() const { return flags_.min_time; }
  /// Shown in the file's "context", and on screen.
  void describe(const std::string& key, const std::string& value) const;
  void add(Group group) { groups_.push_back(std::move(group)); }
  /// Benchmarks that are measured together, all of them whichever are selected: `measure` gives one
  /// measurement for each name.
  void add_whole(std::vector<std::string> names, benchmark::TimeUnit unit,
                 std::function<std::vector<Measurement>()> measure);

  /// Collective. Measures and reports; `columns` asks for nccl-tests' columns on screen. Gives the
  /// exit code: 0 only where something was selected and no result was wrong.
  int run(bool columns = false);

 private:
  std::optional<int> list_or_refuse() const;
  std::vector<std::size_t> selected(const Group& group) const;
  void register_group(std::size_t index);
  std::vector<Measurement> conduct(std::size_t index);
  void follow();

  const Ranks& ranks_;
  Flags flags_;
  std::vector<Group> groups_;
  bool wrong_ = false;
};

}  // namespace bench
