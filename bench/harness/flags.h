/// Those of Google Benchmark's flags that all ranks must agree about. Pure.
#pragma once

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

}  // namespace bench
