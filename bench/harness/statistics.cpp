#include "bench/harness/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace bench {

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(position));
  const auto above = std::min(below + 1, values.size() - 1);
  const double weight = position - std::floor(position);
  return values[below] * (1.0 - weight) + values[above] * weight;
}

std::vector<double> flatten(const Blocks& blocks) {
  std::vector<double> values;
  for (const auto& block : blocks) values.insert(values.end(), block.begin(), block.end());
  return values;
}

double ratio_of_blocks(const Blocks& slow, const Blocks& fast) {
  std::vector<double> ratios;
  for (std::size_t block = 0; block < slow.size(); ++block) {
    ratios.push_back(quantile(slow[block], 0.5) / quantile(fast[block], 0.5));
  }
  return quantile(ratios, 0.5);
}

}  // namespace bench
