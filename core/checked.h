/// Numbers that users, peers and files give: sizes that do not wrap, enumerators that exist.
#pragma once

#include <hora/types.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace hora {

/// No tensor, buffer or result is longer: 2^48 bytes are what a process can address.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 48;

/// A count of bytes, rows or elements. What is negative or beyond 64 bits is none, and neither is
/// anything computed from that: only the last value of a computation needs a look.
class Checked {
 public:
  template <std::integral T>
  constexpr Checked(T value) noexcept  // NOLINT: a number is a count
      : value_(static_cast<std::uint64_t>(value)), valid_(std::in_range<std::uint64_t>(value)) {}

  constexpr Checked operator+(Checked other) const noexcept {
    Checked result = *this;
    result.valid_ =
        valid_ && other.valid_ && !__builtin_add_overflow(value_, other.value_, &result.value_);
    return result;
  }
  constexpr Checked operator*(Checked other) const noexcept {
    Checked result = *this;
    result.valid_ =
        valid_ && other.valid_ && !__builtin_mul_overflow(value_, other.value_, &result.value_);
    return result;
  }
  constexpr bool at_most(std::uint64_t limit) const noexcept { return valid_ && value_ <= limit; }
  /// Of a count that is at most something.
  constexpr std::size_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_;
  bool valid_;
};

/// The last enumerator of an enumeration that counts from 0 without a gap.
template <class E>
inline constexpr E last_of = [] {
  static_assert(sizeof(E) == 0, "no last enumerator is given for this type");
  return E{};
}();
template <>
inline constexpr DataType last_of<DataType> = DataType::uint64;
template <>
inline constexpr ReduceOp last_of<ReduceOp> = ReduceOp::adasum;
template <>
inline constexpr DeviceKind last_of<DeviceKind> = DeviceKind::cuda;

template <class E>
constexpr bool is_enumerator(E value) noexcept {
  static_assert(std::is_unsigned_v<std::underlying_type_t<E>>);
  return value <= last_of<E>;
}

}  // namespace hora
