/// How far a reduction over ranks may be from exact arithmetic.
#pragma once

#include <gtest/gtest.h>
#include <hora/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/support/reference/reduction.h"

namespace hora::internal::test {

struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Value of floats in (nearly) exact arithmetic, and the sum of the magnitudes of the terms,
/// scales included, that errors are proportional to.
struct FloatResult {
  double value = 0;
  double magnitude = 0;
};

template <class T>
FloatResult reduced_floats(const Reduction& how, const std::vector<Elements<T>>& by_rank,
                           std::size_t i) {
  FloatResult result;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const double x = how.prescale * static_cast<double>(by_rank[rank][i]);
    result.value = rank == 0 ? x : combined_numbers(how.op, result.value, x);
    if (how.op == ReduceOp::sum || how.op == ReduceOp::average) result.magnitude += std::abs(x);
  }
  double scale = how.postscale;
  if (how.op == ReduceOp::average) scale /= static_cast<double>(by_rank.size());
  result.value *= scale;
  result.magnitude = std::max(result.magnitude * std::abs(scale), std::abs(result.value));
  return result;
}

/// Exact for integers and for unscaled minima and maxima. Else each of the n-1 operations, the two
/// scalings, the factor itself and the roundings of 16-bit types in and between nodes err by half
/// an epsilon of what they give, which is at most the sum of magnitudes (Higham, Accuracy and
/// Stability of Numerical Algorithms, 2002, 4.2); a whole epsilon each covers the higher orders.
template <class T>
void expect_reduced(const Reduction& how, const std::vector<Elements<T>>& by_rank,
                    const typename Elements<T>::value_type* got, std::size_t offset,
                    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (is_float<T>) {
      const FloatResult expected = reduced_floats<T>(how, by_rank, offset + i);
      const bool exact = (how.op == ReduceOp::min || how.op == ReduceOp::max) &&
                         how.prescale == 1.0 && how.postscale == 1.0;
      const double operations = exact ? 0.0 : static_cast<double>(by_rank.size()) + 4;
      ASSERT_NEAR(static_cast<double>(got[i]), expected.value,
                  operations * epsilon_of<T>() * expected.magnitude)
          << "element " << offset + i;
    } else {
      T expected = widen<T>(by_rank.front()[offset + i]);
      for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
        expected = combined<T>(how.op, expected, widen<T>(by_rank[rank][offset + i]));
      }
      ASSERT_EQ(static_cast<T>(got[i]), expected) << "element " << offset + i;
    }
  }
}

}  // namespace hora::internal::test
