/// Figures from measured times, hora beside the others, and the bars for it. Pure.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace bench {

/// Seconds of one operation each, grouped in blocks.
using Blocks = std::vector<std::vector<double>>;

/// Value below which `share` of the values lie (0.5: the median), interpolated between neighbours.
/// `values` must not be empty.
double quantile(std::vector<double> values, double share);

/// All values of all blocks.
std::vector<double> flatten(const Blocks& blocks);

/// How many times longer `slow` takes than `fast`: the median over pairs of blocks of the ratio of
/// their medians. Neighbouring blocks ran one after the other, so a machine that slows down for
/// some seconds disturbs little. Both must have the same number of blocks, none empty.
double ratio_of_blocks(const Blocks& slow, const Blocks& fast);
/// One ratio for each pair of blocks.
std::vector<double> ratios_of_blocks(const Blocks& slow, const Blocks& fast);

struct Interval {
  double low;
  double median;
  double high;
};

/// The median, and between which of the values the true median lies with a probability of 95 % or
/// more, whatever the distribution: Le Boudec, Performance Evaluation of Computer and
/// Communication Systems (2010), theorem 2.1. Below 6 values, which are too few for that, from the
/// least to the largest. `values` must not be empty.
Interval median_interval(std::vector<double> values);

inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;

/// "`contender` takes at most 1/factor of the time of the fastest of `peers`", for sizes from
/// `from` to `to` bytes.
struct Bar {
  std::string contender;
  std::string key;  ///< of the ratio in results: "vs_mpi"
  std::vector<std::string> peers;
  double factor;
  std::size_t from;
  std::size_t to = std::numeric_limits<std::size_t>::max();
};

/// By "contender key".
using Ratios = std::map<std::string, double>;

/// The ratios of one size: how many times longer the fastest of the bar's peers takes. Without
/// those whose contender or peers were not measured.
Ratios ratios_of(const std::vector<Bar>& bars, const std::map<std::string, Blocks>& contenders);

/// The ratios of one contender, by key.
Ratios ratios_of_contender(const Ratios& ratios, const std::string& contender);

/// The table of ratios of all sizes of one operation: "*" marks one below its bar. `judge`: whether
/// the bars hold for this run.
std::string table_of_ratios(const std::string& operation, const std::vector<Bar>& bars,
                            const std::map<std::size_t, Ratios>& by_size, bool judge);

}  // namespace bench
