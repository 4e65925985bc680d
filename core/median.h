/// The middle of several values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace hora::internal {

/// `values` must not be empty; of an even number the upper one of the two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace hora::internal
