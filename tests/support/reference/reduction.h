/// A reduction's result: one element after the other, in the inputs' order.
#pragma once

#include <hora/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "ops/local/kernel_table.h"
#include "tests/support/reference/elements.h"

namespace hora::internal::test {

/// Reduces floating-point numbers; an average is a sum.
template <class T>
T combined_numbers(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::average:
    case ReduceOp::sum:
      return a + b;
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
    case ReduceOp::max:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      if (a == 0 && b == 0) return std::signbit(a) == (op == ReduceOp::min) ? a : b;
      return (a < b) == (op == ReduceOp::min) ? a : b;
    case ReduceOp::adasum:
      break;
  }
  throw std::logic_error("no reduction of one element at a time");
}

/// Integers' sums and products are modulo 2^64, of which the type keeps the low bits.
template <class T>
Sum<T> combined(ReduceOp op, Sum<T> a, Sum<T> b) {
  if constexpr (is_float<T>) {
    return combined_numbers(op, a, b);
  } else {
    if (op == ReduceOp::min) return a < b ? a : b;
    if (op == ReduceOp::max) return a < b ? b : a;
    const auto wide_a = static_cast<std::uint64_t>(a);
    const auto wide_b = static_cast<std::uint64_t>(b);
    return static_cast<T>(op == ReduceOp::product ? wide_a * wide_b : wide_a + wide_b);
  }
}

/// Scales are of floating-point types, and in the type of the sum.
template <class T>
Elements<T> reduced(ReduceOp op, const std::vector<Elements<T>>& inputs, Scales scales = {}) {
  const auto scaled = [](Sum<T> value, double scale) {
    if constexpr (is_float<T>) value = value * static_cast<Sum<T>>(scale);
    return value;
  };
  Elements<T> result(inputs.front().size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    Sum<T> total = scaled(widen<T>(inputs[0][i]), scales.pre);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      total = combined<T>(op, total, scaled(widen<T>(inputs[k][i]), scales.pre));
    }
    result[i] = narrow<T>(scaled(total, scales.post));
  }
  return result;
}

}  // namespace hora::internal::test
