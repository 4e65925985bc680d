/// Every element type as a C++ type, and values for tensors of them.
#pragma once

#include <hora/types.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "tests/ops/local/half_reference.h"

namespace hora::test {

/// A 16-bit float that is computed with as a double.
template <const HalfFormat& format>
struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  explicit Half(double value) : bits(encode(format, value)) {}
  explicit operator double() const { return decode(format, bits); }
  bool operator==(const Half&) const = default;
};
using Float16 = Half<kFloat16>;
using Bfloat16 = Half<kBfloat16>;

}  // namespace hora::test

namespace hora {
template <>
inline constexpr DataType data_type_of<test::Float16> = DataType::float16;
template <>
inline constexpr DataType data_type_of<test::Bfloat16> = DataType::bfloat16;
}  // namespace hora

namespace hora::test {

template <class T>
inline constexpr bool is_float = !std::is_integral_v<T>;

/// The distance from 1 to the next value of the type.
template <class T>
constexpr double epsilon_of() {
  if constexpr (std::is_same_v<T, Float16>) return 1.0 / 1024;
  if constexpr (std::is_same_v<T, Bfloat16>) return 1.0 / 128;
  return static_cast<double>(std::numeric_limits<T>::epsilon());
}

/// Calls `body.template operator()<T>()` for each.
template <class Body>
void for_each_integer(Body&& body) {
  body.template operator()<std::int32_t>();
  body.template operator()<std::int64_t>();
  body.template operator()<std::uint8_t>();
  body.template operator()<std::int8_t>();
  body.template operator()<std::int16_t>();
  body.template operator()<bool>();
}
template <class Body>
void for_each_float(Body&& body) {
  body.template operator()<Float16>();
  body.template operator()<Bfloat16>();
  body.template operator()<float>();
  body.template operator()<double>();
}
template <class Body>
void for_each_type(Body&& body) {
  for_each_integer(body);
  for_each_float(body);
}

/// Memory of elements; std::vector<bool> has no data().
template <class T>
using Elements = std::vector<std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>>;

template <class T>
TensorView view_of(Elements<T>& elements, Shape shape) {
  return {elements.data(), data_type_of<T>, std::move(shape), {}};
}

inline std::int64_t count_of(const Shape& shape) {
  return TensorView{nullptr, DataType::uint8, shape, {}}.elements();
}

/// One to three dimensions of 17.
inline const std::vector<Shape>& shapes_of_17() {
  static const std::vector<Shape> shapes = {{17}, {17, 17}, {17, 17, 17}};
  return shapes;
}

/// Integers of the whole range, 0 or 1 for bool; of floats, magnitudes from 0.5 to 2 with either
/// sign, where products neither overflow nor vanish.
template <class T>
Elements<T> random_elements(std::int64_t count, std::mt19937_64 random) {
  Elements<T> elements(static_cast<std::size_t>(count));
  for (auto& element : elements) {
    if constexpr (std::is_same_v<T, bool>) {
      element = random() % 2;
    } else if constexpr (is_float<T>) {
      std::uniform_real_distribution<double> magnitude(0.5, 2.0);
      element = static_cast<T>(random() % 2 == 0 ? magnitude(random) : -magnitude(random));
    } else {
      element = static_cast<T>(random());
    }
  }
  return elements;
}

}  // namespace hora::test
