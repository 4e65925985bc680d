/// Element types, shapes, devices and views. Thread rule: any thread; a value, one thread at a
/// time.
#pragma once

#include <hora/export.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace HORA_EXPORT hora {

/// Element type of a tensor. The numbers are part of the wire format: append, never reorder.
enum class DataType : std::uint8_t {
  float16 = 0,
  bfloat16 = 1,
  float32 = 2,
  float64 = 3,
  int32 = 4,
  int64 = 5,
  uint8 = 6,
  int8 = 7,
  int16 = 8,
  boolean = 9,  ///< one byte; all but 0 is true
  uint16 = 10,
  uint32 = 11,
  uint64 = 12,
};

std::size_t size_of(DataType type) noexcept;
std::string_view name_of(DataType type) noexcept;
bool is_floating_point(DataType type) noexcept;

/// The bits of a float16 (IEEE 754 binary16), without arithmetic; _Float16 and __half have the
/// same.
struct Float16 {
  std::uint16_t bits = 0;
  bool operator==(const Float16&) const = default;
};
/// The bits of a bfloat16: the upper half of a float's.
struct BFloat16 {
  std::uint16_t bits = 0;
  bool operator==(const BFloat16&) const = default;
};

namespace detail {
/// The place of T in the list, in the order of DataType; the list's length where it is not in it.
template <class T, class... All>
constexpr int place_among() {
  int place = 0;
  (void)((std::is_same_v<T, All> || (++place, false)) || ...);
  return place;
}
template <class T>
inline constexpr int kPlace =
    place_among<T, Float16, BFloat16, float, double, std::int32_t, std::int64_t, std::uint8_t,
                std::int8_t, std::int16_t, bool, std::uint16_t, std::uint32_t, std::uint64_t>();
}  // namespace detail

/// Maps a C++ type to its DataType: `data_type_of<float>` is DataType::float32.
template <class T>
inline constexpr DataType data_type_of = [] {
  static_assert(detail::kPlace<T> < 13, "hora has no DataType for this C++ type");
  return static_cast<DataType>(detail::kPlace<T>);
}();
template <>
inline constexpr DataType data_type_of<std::byte> = DataType::uint8;

/// How the values of all ranks become one. The numbers are part of the wire format: append only.
///
/// Integer sums and products wrap, as MPI's; their average is an error. min and max of a NaN are
/// NaN; -0 is below +0. Of booleans sum and max are or, product and min and.
enum class ReduceOp : std::uint8_t {
  average = 0,
  sum = 1,
  min = 2,
  max = 3,
  product = 4,
  /// Adaptive summation of floating-point types between nodes, a node counting as its ranks' sum:
  /// the sum of orthogonal gradients, the average of parallel ones (Maleki et al., arXiv
  /// 2006.02924).
  adasum = 5,
};
std::string_view name_of(ReduceOp op) noexcept;

enum class DeviceKind : std::uint8_t { cpu = 0, cuda = 1 };

/// Where memory lies. `index` counts the devices of one kind in this process.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
std::string_view name_of(DeviceKind kind) noexcept;

/// The ranks of a collective: the world, or a set made by add_process_set() (process_set.h). Sets
/// have names of their own: ranks that give one tensor to different sets wait, and the warning of
/// HORA_STALL_WARNING names the sets.
class ProcessSet {
 public:
  constexpr ProcessSet() noexcept = default;
  /// 1, 2, ... in the order in which sets are added, those of InitOptions first; never used again.
  explicit constexpr ProcessSet(std::uint32_t number) noexcept : number_(number) {}
  constexpr std::uint32_t number() const noexcept { return number_; }
  constexpr auto operator<=>(const ProcessSet&) const noexcept = default;

 private:
  std::uint32_t number_ = 0;
};
inline constexpr ProcessSet kWorld{};

std::string to_string(ProcessSet set);
std::ostream& operator<<(std::ostream& stream, ProcessSet set);

/// Extents, outermost first, each >= 0. Empty: a scalar.
using Shape = std::vector<std::int64_t>;

/// A TensorView that is only read.
struct ConstTensorView {
  const void* data = nullptr;
  DataType type = DataType::float32;
  Shape shape;
  Device device;
  void* stream = nullptr;

  std::int64_t elements() const;
  std::size_t bytes() const;
};

/// A dense row-major tensor in memory that it does not own.
struct TensorView {
  void* data = nullptr;
  DataType type = DataType::float32;
  Shape shape;
  Device device;
  /// The stream (cudaStream_t) on which the data is ready, and on which wait() orders the result
  /// before later work; null: the device's default stream.
  void* stream = nullptr;

  /// Throws Error(invalid_argument) for an unknown type, a negative extent, or above 2^48 bytes.
  std::int64_t elements() const;
  std::size_t bytes() const;

  operator ConstTensorView() const& { return {data, type, shape, device, stream}; }
  operator ConstTensorView() && {
    return {data, type, static_cast<Shape&&>(shape), device, stream};
  }
};

namespace detail {
struct NoExtent {
  NoExtent() = delete;
};
}  // namespace detail

/// The view of elements of type T: of const ones a ConstTensorView.
template <class T>
using ViewOf = std::conditional_t<std::is_const_v<T>, ConstTensorView, TensorView>;

/// Views of the caller's memory on the CPU, which must outlive them. One value is a scalar.
///
///     std::vector<float> gradients(1000);
///     hora::allreduce(world, hora::view(gradients));             // one dimension, of 1000
///     hora::broadcast(world, hora::view(&matrix[0][0], hora::Shape{rows, 3}));
template <class T>
ViewOf<T> view(T& value) {
  return {&value, data_type_of<std::remove_const_t<T>>, {}, {}, nullptr};
}
template <class T>
void view(const T&&) = delete;
template <class T>
ViewOf<T> view(T* data, std::int64_t count) {
  return {data, data_type_of<std::remove_const_t<T>>, {count}, {}, nullptr};
}
template <class T>
ViewOf<T> view(T* data, Shape shape) {
  return {data, data_type_of<std::remove_const_t<T>>, static_cast<Shape&&>(shape), {}, nullptr};
}
/// Refuses `{}`, no elements or a scalar: write view(value), a count, or Shape{}.
template <class T>
TensorView view(T* data, std::initializer_list<detail::NoExtent>) = delete;
template <class T, std::size_t N>
ViewOf<T> view(std::span<T, N> values) {
  return view(values.data(), static_cast<std::int64_t>(values.size()));
}
template <class T, class Allocator>
TensorView view(std::vector<T, Allocator>& values) {
  return view(values.data(), static_cast<std::int64_t>(values.size()));
}
template <class T, class Allocator>
ConstTensorView view(const std::vector<T, Allocator>& values) {
  return view(values.data(), static_cast<std::int64_t>(values.size()));
}
template <class T, class Allocator>
void view(const std::vector<T, Allocator>&&) = delete;

}  // namespace hora

namespace std {
template <>
struct hash<hora::ProcessSet> {
  size_t operator()(hora::ProcessSet set) const noexcept { return hash<uint32_t>()(set.number()); }
};
}  // namespace std
