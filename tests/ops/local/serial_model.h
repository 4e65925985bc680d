/// hora::reduce, one element after the other.
#pragma once

#include <hora/types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "ops/local/scales.h"
#include "tests/ops/local/half_reference.h"

namespace hora::test {

/// Two values of a type that is no integer or boolean.
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
  throw std::logic_error("no reduction");
}

/// The serial model, one struct a DataType: elements as stored, and as reduced.
template <class T, DataType type>
struct Direct {
  using Stored = T;
  using Sum = T;
  static constexpr DataType kType = type;
  static Sum widen(Stored value) { return value; }
  static Stored narrow(Sum value) { return value; }
  static bool is_nan(Stored value) { return value != value; }
  static Sum combined(ReduceOp op, Sum a, Sum b) { return combined_numbers(op, a, b); }
};

/// Sums and products modulo 2^64, of which the low bits are kept.
template <class T, DataType type>
struct Integer : Direct<T, type> {
  static T combined(ReduceOp op, T a, T b) {
    const auto wide_a = static_cast<std::uint64_t>(a);
    const auto wide_b = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::min:
        return a < b ? a : b;
      case ReduceOp::max:
        return a < b ? b : a;
      case ReduceOp::product:
        return static_cast<T>(wide_a * wide_b);
      default:
        return static_cast<T>(wide_a + wide_b);
    }
  }
};

struct Boolean : Direct<std::uint8_t, DataType::boolean> {
  static Sum widen(Stored value) { return value == 0 ? 0 : 1; }
  static Sum combined(ReduceOp op, Sum a, Sum b) {
    const bool is_and = op == ReduceOp::min || op == ReduceOp::product;
    return is_and ? a != 0 && b != 0 : a != 0 || b != 0;
  }
};

template <DataType type>
struct Half {
  using Stored = std::uint16_t;
  using Sum = float;
  static constexpr DataType kType = type;
  static constexpr HalfFormat kFormat = type == DataType::float16 ? kFloat16 : kBfloat16;
  static Sum widen(Stored value) { return static_cast<float>(decode(kFormat, value)); }
  static Stored narrow(Sum value) { return encode(kFormat, value); }
  static bool is_nan(Stored value) { return hora::test::is_nan(kFormat, value); }
  static Sum combined(ReduceOp op, Sum a, Sum b) { return combined_numbers(op, a, b); }
};

template <class Model>
std::vector<typename Model::Stored> serial_reduce(
    ReduceOp op, const std::vector<std::vector<typename Model::Stored>>& inputs, std::size_t count,
    Scales scales) {
  using Sum = typename Model::Sum;
  const auto scaled = [](Sum value, double scale) {
    return is_floating_point(Model::kType) ? static_cast<Sum>(value * static_cast<Sum>(scale))
                                           : value;
  };
  std::vector<typename Model::Stored> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto element = [&](std::size_t k) {
      return scaled(Model::widen(inputs[k][i]), scales.pre);
    };
    Sum total = element(0);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      total = Model::combined(op, total, element(k));
    }
    result[i] = Model::narrow(scaled(total, scales.post));
  }
  return result;
}

/// The pattern of bits that `bits` ends with.
template <class Stored>
Stored pattern(std::uint64_t bits) {
  Stored value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Zeros, the least subnormal, 1, infinity and NaN, of either sign.
template <class Model>
typename Model::Stored special_element(std::uint64_t bits) {
  using Limits = std::numeric_limits<typename Model::Sum>;
  const auto sign = static_cast<typename Model::Sum>(bits % 2 == 0 ? 1 : -1);
  switch (bits / 2 % 6) {
    case 0:
      return Model::narrow(sign * Limits::infinity());
    case 1:
      return Model::narrow(std::copysign(Limits::quiet_NaN(), sign));
    case 2:
      return pattern<typename Model::Stored>(1);
    case 3:
      return Model::narrow(sign);
    default:
      return Model::narrow(sign * 0);
  }
}

/// Mostly numbers of like size, so that sums round; every 16th element any pattern of bits at all,
/// as many special ones. Booleans: mostly 0 and 1.
template <class Model>
typename Model::Stored random_element(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const std::uint64_t kind = bits >> 60;
  const auto any = pattern<typename Model::Stored>(bits);
  if constexpr (Model::kType == DataType::boolean) {
    return kind == 0 ? any : static_cast<std::uint8_t>(any % 2);
  } else if constexpr (std::is_integral_v<typename Model::Sum>) {
    return any;
  } else {
    if (kind == 0) return any;
    if (kind == 1) return special_element<Model>(bits);
    const double number = static_cast<double>(static_cast<std::int64_t>(bits << 8)) * 0x1p-60;
    return Model::narrow(static_cast<typename Model::Sum>(number));
  }
}

}  // namespace hora::test
