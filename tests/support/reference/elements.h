/// Every element type: as a DataType, as a C++ type, and how it is computed with.
#pragma once

#include <hora/types.h>

#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "tests/support/reference/half_format.h"

namespace hora::internal::test {

inline constexpr std::array kFloatTypes = {DataType::float16, DataType::bfloat16, DataType::float32,
                                           DataType::float64};
inline constexpr std::array kAllTypes = {
    DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64, DataType::int32,
    DataType::int64,   DataType::uint8,    DataType::int8,    DataType::int16,   DataType::boolean,
    DataType::uint16,  DataType::uint32,   DataType::uint64};
/// All but integers of 16 bits, which NCCL does not have.
inline constexpr std::array kNcclTypes = {DataType::float16, DataType::bfloat16, DataType::float32,
                                          DataType::float64, DataType::int32,    DataType::int64,
                                          DataType::uint8,   DataType::int8,     DataType::boolean,
                                          DataType::uint32,  DataType::uint64};
/// Operations on one element at a time; an average is a scaled sum.
inline constexpr std::array kElementOps = {ReduceOp::sum, ReduceOp::min, ReduceOp::max,
                                           ReduceOp::product};

/// A 16-bit float; trivial, so that it is copied as bytes.
template <const HalfFormat& format>
struct Half {
  std::uint16_t bits;

  Half() = default;
  explicit Half(double value) : bits(encode(format, value)) {}
  explicit operator double() const { return decode(format, bits); }
  bool operator==(const Half&) const = default;
};
using Float16 = Half<kFloat16>;
using Bfloat16 = Half<kBfloat16>;

}  // namespace hora::internal::test

namespace hora {
template <>
inline constexpr DataType data_type_of<internal::test::Float16> = DataType::float16;
template <>
inline constexpr DataType data_type_of<internal::test::Bfloat16> = DataType::bfloat16;
}  // namespace hora

namespace hora::internal::test {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;
template <class T>
inline constexpr bool is_float = !std::is_integral_v<T>;

/// An element in memory; std::vector<bool> has no data().
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
template <class T>
using Elements = std::vector<Stored<T>>;
/// The type that it is reduced in.
template <class T>
using Sum = std::conditional_t<is_half<T>, float, T>;

template <class T>
Sum<T> widen(Stored<T> value) {
  if constexpr (is_half<T>) return static_cast<float>(static_cast<double>(value));
  if constexpr (!is_half<T>) return static_cast<T>(value);
}
template <class T>
Stored<T> narrow(Sum<T> value) {
  return static_cast<Stored<T>>(value);
}

/// The distance from 1 to the next value of the type.
template <class T>
constexpr double epsilon_of() {
  if constexpr (std::is_same_v<T, Float16>) return 0x1p-10;
  if constexpr (std::is_same_v<T, Bfloat16>) return 0x1p-7;
  return static_cast<double>(std::numeric_limits<T>::epsilon());
}

/// Calls `body.template operator()<T>()` for each.
template <class Body>
void for_each_float(Body&& body) {
  body.template operator()<Float16>();
  body.template operator()<Bfloat16>();
  body.template operator()<float>();
  body.template operator()<double>();
}
template <class Body>
void for_each_type(Body&& body) {
  for_each_float(body);
  body.template operator()<std::int32_t>();
  body.template operator()<std::int64_t>();
  body.template operator()<std::uint8_t>();
  body.template operator()<std::int8_t>();
  body.template operator()<std::int16_t>();
  body.template operator()<std::uint16_t>();
  body.template operator()<std::uint32_t>();
  body.template operator()<std::uint64_t>();
  body.template operator()<bool>();
}
/// Calls it for that type alone.
template <class Body>
void with_type(DataType type, Body&& body) {
  bool called = false;
  for_each_type([&]<class T>() {
    if (data_type_of<T> != type) return;
    body.template operator()<T>();
    called = true;
  });
  if (!called) throw std::logic_error("unknown type");
}

}  // namespace hora::internal::test
