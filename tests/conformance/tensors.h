/// Tensors of every element type in either memory, and values for them.
#pragma once

#include <gtest/gtest.h>
#include <hora/types.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/conformance/ranks.h"
#include "tests/support/reference/elements.h"

namespace hora::internal::test {

/// Elements of a case in the memory that its program is about: where they are in host memory, or in
/// a copy on a device, from which they come back when this is over. Converts to the views that
/// collectives take. Lives until the collective is complete. Thread rule: one thread.
class Placed {
 public:
  Placed() = default;
  /// `device`: null for host memory.
  template <class E>
  Placed(DeviceOfRank* device, const Device& where, E* elements, Shape shape)
      : elements_(reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<E>*>(elements))),
        view_{elements_, data_type_of<std::remove_const_t<E>>, std::move(shape), {}} {
    if (device != nullptr) lay_on(*device, where);
  }
  Placed(Placed&&) = default;
  Placed& operator=(Placed&&) = default;
  ~Placed() { take_back(); }

  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  /// As another type of as many bytes an element.
  Placed as(DataType type) && {
    view_.type = type;
    return std::move(*this);
  }
  void* stream() const { return view_.stream; }
  /// The elements are as the device has them; nothing is left there.
  void take_back() {
    const auto copy = std::exchange(copy_, nullptr);
    if (!copy) return;
    try {
      const auto bytes = copy->read();
      std::copy(bytes.begin(), bytes.end(), elements_);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "while a tensor came back: " << error.what();
    }
  }

 private:
  void lay_on(DeviceOfRank& device, const Device& where) {
    copy_ = device.copy_of(elements_, view_.bytes());
    view_.data = copy_->data();
    view_.device = where;
    view_.stream = copy_->stream();
  }

  std::byte* elements_ = nullptr;
  TensorView view_;
  std::unique_ptr<DeviceCopy> copy_;
};

inline std::int64_t count_of(const Shape& shape) {
  return TensorView{nullptr, DataType::uint8, shape, {}}.elements();
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

}  // namespace hora::internal::test
