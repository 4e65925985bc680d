/// One rank, and its tensors in the memory that a program is about.
#pragma once

#include <gtest/gtest.h>
#include <hora/hora.h>

#include <algorithm>
#include <random>
#include <ranges>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/conformance/ranks.h"
#include "tests/conformance/tensors.h"

namespace hora::internal::test {

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
