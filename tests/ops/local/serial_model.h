/// hora::reduce, one element after the other.
#pragma once

#include <hora/types.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/ops/local/half_reference.h"

namespace hora::test {

/// The serial model, one struct a DataType: elements as stored, and as summed.
template <class T, DataType type>
struct Direct {
  using Stored = T;
  using Sum = T;
  static constexpr DataType kType = type;
  static Sum widen(Stored value) { return value; }
  static Stored narrow(Sum value) { return value; }
  static bool is_nan(Stored value) { return value != value; }
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
};

template <class Model>
std::vector<typename Model::Stored> serial_sum(
    const std::vector<std::vector<typename Model::Stored>>& inputs, std::size_t count,
    double scale) {
  using Sum = typename Model::Sum;
  std::vector<typename Model::Stored> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = Model::widen(inputs[0][i]);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      sum = static_cast<Sum>(sum + Model::widen(inputs[k][i]));
    }
    if (is_floating_point(Model::kType)) sum = static_cast<Sum>(sum * static_cast<Sum>(scale));
    result[i] = Model::narrow(sum);
  }
  return result;
}

/// Mostly numbers of like size, so that sums round; every 16th element any pattern of bits at all.
template <class Model>
typename Model::Stored random_element(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  typename Model::Stored any;
  std::memcpy(&any, &bits, sizeof any);
  if (!is_floating_point(Model::kType) || bits >> 60 == 0) return any;
  const double number = static_cast<double>(static_cast<std::int64_t>(bits << 8)) * 0x1p-60;
  return Model::narrow(static_cast<typename Model::Sum>(number));
}

}  // namespace hora::test
