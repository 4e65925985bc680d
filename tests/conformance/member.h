/// One rank, and its tensors of every element type in the memory that a program is about, with
/// values for them.
#pragma once

#include <gtest/gtest.h>
#include <hora/hora.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <random>
#include <ranges>
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

/// One rank's part in a case. Thread rule: `context` as Context says, the rest one thread.
struct Member {
  Context context;
  DeviceOfRank* device = nullptr;  ///< null: tensors lie in host memory
  std::mt19937_64 own_random = {};

  /// As view(), in the memory that the program is about.
  template <class E>
  Placed placed(E* elements, Shape shape) const {
    return {device, context.device(), elements, std::move(shape)};
  }
  template <class E>
  Placed placed(E* elements, std::int64_t count) const {
    return placed(elements, Shape{count});
  }
  /// A view of a vector or span.
  template <std::ranges::contiguous_range Range>
  Placed placed(Range&& elements) const {
    return placed(std::data(elements), static_cast<std::int64_t>(std::size(elements)));
  }
  /// A view of one value: a scalar.
  template <class E>
  requires std::is_arithmetic_v<E> Placed placed(E& value)
  const { return placed(&value, Shape{}); }
  /// Returns the bytes there, in the order of the view's stream.
  std::vector<std::byte> bytes_of(const TensorView& view) const {
    std::vector<std::byte> bytes(view.bytes());
    const auto* const from = static_cast<const std::byte*>(view.data);
    if (view.device.kind == DeviceKind::cuda) {
      device->read(bytes.data(), from, bytes.size(), view.stream);
    } else {
      std::copy_n(from, bytes.size(), bytes.begin());
    }
    return bytes;
  }
  template <class T>
  Elements<T> read(const TensorView& view) const {
    Elements<T> elements(static_cast<std::size_t>(view.elements()));
    std::ranges::copy(bytes_of(view), reinterpret_cast<std::byte*>(elements.data()));
    return elements;
  }
  /// As many elements as the view has.
  template <class E>
  void write(const TensorView& view, const std::vector<E>& elements) const {
    auto* const to = static_cast<std::byte*>(view.data);
    const auto* const from = reinterpret_cast<const std::byte*>(elements.data());
    if (view.device.kind == DeviceKind::cuda) {
      device->write(to, from, view.bytes(), view.stream);
    } else {
      std::copy_n(from, view.bytes(), to);
    }
  }
};

/// The result's, in host memory or on the device.
template <class T>
Elements<T> elements_of(const Member& member, const Result& result) {
  const TensorView view = result.view();
  EXPECT_EQ(view.type, data_type_of<T>);
  return member.read<T>(view);
}

}  // namespace hora::internal::test
