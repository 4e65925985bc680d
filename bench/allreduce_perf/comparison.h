/// hora beside the others, and the bars it is held to. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "bench/harness/statistics.h"

namespace bench {

/// "`contender` takes at most 1/factor of the time of the fastest of `peers`", on 2 ranks of one
/// node, for sizes from `from` to `to` bytes.
struct Bar {
  std::string contender;
  std::string key;  ///< of the ratio in results: "vs_mpi"
  std::vector<std::string> peers;
  double factor;
  std::size_t from;
  std::size_t to;
};
const std::vector<Bar>& allreduce_bars();

/// The ratios of one size, by "contender key": how many times longer the fastest of the bar's peers
/// takes. Without those whose contender or peers were not measured.
std::map<std::string, double> ratios_of(const std::map<std::string, Blocks>& contenders);

/// The table of ratios of all sizes: "*" marks one below its bar. `judge`: whether the bars hold
/// for this run.
std::string table_of_ratios(const std::map<std::size_t, std::map<std::string, double>>& by_size,
                            bool judge);

}  // namespace bench
