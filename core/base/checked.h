/// Checks of values that users, peers and files give: sizes that do not wrap, enumerators that
/// exist, bytes that are read within their bounds; and small arithmetic.
#pragma once

#include <hora/error.h>
#include <hora/types.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hora::internal {

/// No tensor, buffer or result is longer: 2^48 bytes are what a process can address.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 48;

/// Alignment in bytes of what ranks share or send: a cache line, and the widest vector register.
inline constexpr std::size_t kAlignment = 64;
constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// `values` must not be empty; of an even number the upper one of the two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// A count of bytes, rows or elements. A negative number or one beyond 64 bits is invalid, and so
/// is everything computed from it: only the last value of a computation needs a check.
class Checked {
 public:
  template <std::integral T>
  constexpr Checked(T value) noexcept  // NOLINT: a number is a count
      : value_(static_cast<std::uint64_t>(value)), valid_(std::in_range<std::uint64_t>(value)) {}

  constexpr Checked operator+(Checked other) const noexcept {
    other.valid_ =
        valid_ && other.valid_ && !__builtin_add_overflow(value_, other.value_, &other.value_);
    return other;
  }
  constexpr Checked operator*(Checked other) const noexcept {
    other.valid_ =
        valid_ && other.valid_ && !__builtin_mul_overflow(value_, other.value_, &other.value_);
    return other;
  }
  constexpr bool at_most(std::uint64_t limit) const noexcept { return valid_ && value_ <= limit; }
  /// Meaningful where at_most() is true of something.
  constexpr std::size_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_;
  bool valid_;
};

/// The product of the extents. Throws Error(invalid_argument) for a type that is none of hora's, a
/// negative extent, or more than 2^48 bytes.
std::int64_t elements_of(DataType type, std::span<const std::int64_t> shape);

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
template <>
inline constexpr ErrorCode last_of<ErrorCode> = ErrorCode::timeout;

template <class E>
constexpr bool is_enumerator(E value) noexcept {
  static_assert(std::is_unsigned_v<std::underlying_type_t<E>>);
  return value <= last_of<E>;
}

/// The origin of bytes, for the error where they are invalid.
struct BytesOrigin {
  const char* what = "";  ///< "an object's head"
  int rank = -1;          ///< world rank that sent them, -1 where unknown
  ErrorCode code = ErrorCode::transport;
};

/// Goes through bytes from first to last; nothing is read beyond them, and no length in them is
/// trusted before as many bytes have arrived. Throws an Error that names the origin. The bytes
/// outlive it. Thread rule: one thread at a time.
class BoundedReader {
 public:
  BoundedReader(std::span<const std::byte> bytes, const BytesOrigin& origin)
      : rest_(bytes), origin_(origin), length_(bytes.size()) {}

  std::size_t remaining() const { return rest_.size(); }

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take_bytes(std::uint64_t count) {
    if (count > rest_.size()) {
      refuse("it names " + std::to_string(count) + " bytes where " + std::to_string(rest_.size()) +
             " are left");
    }
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(static_cast<std::size_t>(count));
    return taken;
  }
  /// How many items follow, each of at least `each` bytes: no more than have arrived.
  std::size_t take_count(std::size_t each) {
    const auto count = take<std::uint64_t>();
    if (!(Checked(count) * each).at_most(rest_.size())) {
      refuse("it names " + std::to_string(count) + " items where " + std::to_string(rest_.size()) +
             " bytes are left");
    }
    return static_cast<std::size_t>(count);
  }
  std::string take_text() {
    const auto text = take_bytes(take_count(1));
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  void expect_end() const {
    if (!rest_.empty()) refuse(std::to_string(rest_.size()) + " bytes follow its end");
  }

  [[noreturn]] void refuse(const std::string& why) const {
    const std::string from =
        origin_.rank < 0 ? std::string() : " of rank " + std::to_string(origin_.rank);
    throw Error(origin_.code,
                std::string(origin_.what) + from + ", " + std::to_string(length_) +
                    " bytes long, cannot be read: " + why +
                    ". Do all ranks call the same collectives, with the same build of hora?",
                origin_.rank);
  }

 private:
  std::span<const std::byte> rest_;
  BytesOrigin origin_;
  std::size_t length_;
};

}  // namespace hora::internal
