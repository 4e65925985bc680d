/// One operation over sizes: contenders side by side, and how many times faster hora is.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/comparison.h"
#include "bench/harness/program.h"
#include "bench/harness/timed_loop.h"

namespace bench {

struct SweepOptions {
  std::size_t min_bytes = 4;
  std::size_t max_bytes = 64 * mib;
  int factor = 4;  ///< between sizes
  int blocks = 10;

  /// Makes them options of the program; refers to this.
  void add_to(CLI::App& app);
  /// In bytes, each a multiple of `unit`.
  std::vector<std::size_t> sizes(std::size_t unit) const;
};

/// The bytes that one operation moves.
struct Volume {
  std::size_t bytes = 0;
  std::size_t element_bytes = sizeof(float);
  std::size_t tensors = 1;
  double bus_factor = 1.0;  ///< bus bandwidth over bytes / time, as nccl-tests defines it
  std::string label;        ///< "type redop"
};

/// The contenders of one size, and the memory that they take turns in.
class Contenders {
 public:
  virtual ~Contenders() = default;
  /// Refers to this. Throws std::invalid_argument for a name that it does not know.
  virtual Contender contender(const std::string& name) = 0;
};

/// Thread rule: one thread.
class Sweep {
 public:
  /// References outlive it; it outlives program's run.
  Sweep(const Ranks& ranks, Program& program, const SweepOptions& options, std::string operation,
        std::vector<Bar> bars);
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  /// Adds the benchmarks operation/name/bytes to the program. `make` is collective.
  void add(const Volume& volume, const std::vector<std::string>& names,
           std::function<std::unique_ptr<Contenders>()> make);

  /// The measurements; empty where nothing was compared.
  std::string table(bool judge) const;
  /// Medians of the size that was measured last, by contender.
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  std::vector<Measurement> measure(const Volume& volume, const std::vector<std::string>& names,
                                   Contenders& contenders);
  Measurement measurement_of(const Timing& timing, const Volume& volume) const;

  const Ranks& ranks_;
  Program& program_;
  const SweepOptions& options_;
  std::string operation_;
  std::vector<Bar> bars_;
  std::map<std::size_t, Ratios> ratios_;
  std::map<std::string, double> seconds_;
};

/// malloc's thresholds in this process, which MPI uses too. `raised`: by hora::init.
std::string malloc_thresholds(bool raised);

}  // namespace bench
