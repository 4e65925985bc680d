/// What a reduction must give: computed one element at a time, in double and in 64-bit integers.
#pragma once

#include <gtest/gtest.h>
#include <hora/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/conformance/elements.h"

namespace hora::test {

struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// Of floats: the value in (nearly) exact arithmetic, and the sum of the magnitudes of the terms,
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
    const bool first = rank == 0;
    switch (how.op) {
      case ReduceOp::min:
        result.value = first ? x : std::min(result.value, x);
        break;
      case ReduceOp::max:
        result.value = first ? x : std::max(result.value, x);
        break;
      case ReduceOp::product:
        result.value = first ? x : result.value * x;
        break;
      default:
        result.value += x;
        result.magnitude += std::abs(x);
    }
  }
  double scale = how.postscale;
  if (how.op == ReduceOp::average) scale /= static_cast<double>(by_rank.size());
  result.value *= scale;
  result.magnitude = std::max(result.magnitude * std::abs(scale), std::abs(result.value));
  return result;
}

/// Sums and products modulo 2^64, of which the type keeps its lowest bits.
template <class T>
T reduced_integers(ReduceOp op, const std::vector<Elements<T>>& by_rank, std::size_t i) {
  auto wide = static_cast<std::uint64_t>(by_rank.front()[i]);
  T extreme = static_cast<T>(by_rank.front()[i]);
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const T x = static_cast<T>(by_rank[rank][i]);
    if (op == ReduceOp::sum) wide += static_cast<std::uint64_t>(x);
    if (op == ReduceOp::product) wide *= static_cast<std::uint64_t>(x);
    if (op == ReduceOp::min) extreme = std::min(extreme, x);
    if (op == ReduceOp::max) extreme = std::max(extreme, x);
  }
  return op == ReduceOp::min || op == ReduceOp::max ? extreme : static_cast<T>(wide);
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
      ASSERT_EQ(static_cast<T>(got[i]), reduced_integers<T>(how.op, by_rank, offset + i))
          << "element " << offset + i;
    }
  }
}

}  // namespace hora::test
