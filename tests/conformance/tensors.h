/// Tensors of every element type, and values for them.
#pragma once

#include <hora/types.h>

#include <random>
#include <utility>
#include <vector>

#include "tests/support/reference/elements.h"

namespace hora::test {

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
