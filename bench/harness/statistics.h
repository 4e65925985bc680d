/// Figures from measured times. Pure.
#pragma once

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

}  // namespace bench
