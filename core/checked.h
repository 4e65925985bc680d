/// Arithmetic on sizes that users, peers and files give.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
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

}  // namespace hora
