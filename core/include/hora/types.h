/// Element types, shapes, devices and views: the values that name a piece of memory; view() below
/// has an example. Thread rule: any thread; a value, one thread at a time.
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
  boolean = 9,  ///< one byte, 0 or 1
  uint16 = 10,
  uint32 = 11,
  uint64 = 12,
};

/// Bytes of one element.
std::size_t size_of(DataType type) noexcept;
/// "float32", "bfloat16", "bool", ...
std::string_view name_of(DataType type) noexcept;
/// True for float16, bfloat16, float32, float64.
bool is_floating_point(DataType type) noexcept;

/// The bits of a float16 (IEEE 754 binary16): sign, 5 bits of exponent, 10 of fraction. No
/// arithmetic: for that, and for conversions, take a type of your own with the same bits, as
/// _Float16 and __half have them.
struct Float16 {
  std::uint16_t bits = 0;
  bool operator==(const Float16&) const = default;
};
/// The bits of a bfloat16: the upper half of a float's. As Float16.
struct BFloat16 {
  std::uint16_t bits = 0;
  bool operator==(const BFloat16&) const = default;
};

/// The C++ type's DataType: `data_type_of<float>` is DataType::float32. std::byte is uint8.
template <class T>
inline constexpr DataType data_type_of = [] {
  static_assert(sizeof(T) == 0, "hora has no DataType for this C++ type");
  return DataType::uint8;
}();
template <>
inline constexpr DataType data_type_of<float> = DataType::float32;
template <>
inline constexpr DataType data_type_of<double> = DataType::float64;
template <>
inline constexpr DataType data_type_of<std::int32_t> = DataType::int32;
template <>
inline constexpr DataType data_type_of<std::int64_t> = DataType::int64;
template <>
inline constexpr DataType data_type_of<std::uint8_t> = DataType::uint8;
template <>
inline constexpr DataType data_type_of<std::int8_t> = DataType::int8;
template <>
inline constexpr DataType data_type_of<std::int16_t> = DataType::int16;
template <>
inline constexpr DataType data_type_of<std::uint16_t> = DataType::uint16;
template <>
inline constexpr DataType data_type_of<std::uint32_t> = DataType::uint32;
template <>
inline constexpr DataType data_type_of<std::uint64_t> = DataType::uint64;
template <>
inline constexpr DataType data_type_of<std::byte> = DataType::uint8;
template <>
inline constexpr DataType data_type_of<Float16> = DataType::float16;
template <>
inline constexpr DataType data_type_of<BFloat16> = DataType::bfloat16;
template <>
inline constexpr DataType data_type_of<bool> = DataType::boolean;

/// How the values of all ranks become one. The numbers are part of the wire format: append, never
/// reorder.
///
/// Integer sums and products wrap modulo 2^bits, as MPI's do, and minima and maxima are taken in
/// the type itself, signed or unsigned; an average of integers is an error. The minimum and the
/// maximum of values with a NaN among them is a NaN, and -0 is below +0. Of booleans, sum and max
/// are the logical or, product and min the logical and.
enum class ReduceOp : std::uint8_t {
  average = 0,
  sum = 1,
  min = 2,
  max = 3,
  product = 4,
  /// Adaptive summation, of floating-point types: the sum of orthogonal gradients, the average of
  /// parallel ones (Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020,
  /// arXiv 2006.02924). The ranks of a node count as one, with their sum: Adasum is between nodes.
  adasum = 5,
};
std::string_view name_of(ReduceOp op) noexcept;

enum class DeviceKind : std::uint8_t { cpu = 0, cuda = 1 };

/// Where memory lies. `index` counts the devices of one kind in this process (0 for the CPU).
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
std::string_view name_of(DeviceKind kind) noexcept;

/// Ranks that take part in a collective: the world, or a set that add_process_set() has made
/// (process_set.h). A number that means something to one job alone; it is not used again when the
/// set is removed. Names of different sets have nothing to do with one another. So ranks that give
/// one tensor to different sets by mistake are not in error, as each may yet submit to the other's
/// set: they wait, and the warning of HORA_STALL_WARNING names the ranks that wait under it, and
/// the set.
class ProcessSet {
 public:
  /// The world.
  constexpr ProcessSet() noexcept = default;
  /// 1, 2, ... in the order in which sets are added, those of InitOptions first.
  explicit constexpr ProcessSet(std::uint32_t number) noexcept : number_(number) {}
  constexpr std::uint32_t number() const noexcept { return number_; }
  constexpr auto operator<=>(const ProcessSet&) const noexcept = default;

 private:
  std::uint32_t number_ = 0;
};
inline constexpr ProcessSet kWorld{};

/// Its number: "1".
std::string to_string(ProcessSet set);
std::ostream& operator<<(std::ostream& stream, ProcessSet set);

/// Extent of each dimension, outermost first, each >= 0. Empty: a scalar (one element).
using Shape = std::vector<std::int64_t>;

/// A dense row-major tensor in memory that it does not own, and that is read only: what inputs of
/// allgather, alltoall and reduce_scatter are. Every TensorView is one, too.
struct ConstTensorView {
  const void* data = nullptr;
  DataType type = DataType::float32;
  Shape shape;
  Device device;
  /// On a device: the stream (cudaStream_t) that the data is ready on; null: the device's default
  /// stream.
  void* stream = nullptr;

  /// As TensorView's.
  std::int64_t elements() const;
  std::size_t bytes() const;
};

/// A dense row-major tensor in memory that it does not own.
struct TensorView {
  void* data = nullptr;
  DataType type = DataType::float32;
  Shape shape;
  Device device;
  /// On a device: the stream (cudaStream_t) that the data is ready on, and that the result is
  /// ordered before by wait(); null: the device's default stream.
  void* stream = nullptr;

  /// Product of the extents (1 for a scalar). Throws Error(invalid_argument) for an unknown type, a
  /// negative extent, or a product in bytes (extents of 0 left out) that is above 2^48.
  std::int64_t elements() const;
  /// elements() * size_of(type).
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

/// What view() gives of elements of type T: of const ones a view that is read only.
template <class T>
using ViewOf = std::conditional_t<std::is_const_v<T>, ConstTensorView, TensorView>;

/// Views of the caller's memory on the CPU, which must outlive them, and what they are given to:
///
///     std::vector<float> gradients(1000);
///     hora::allreduce(world, hora::view(gradients));             // one dimension, of 1000
///     hora::broadcast(world, hora::view(&matrix[0][0], hora::Shape{rows, 3}));
///
/// View of one value: a scalar.
template <class T>
ViewOf<T> view(T& value) {
  return {&value, data_type_of<std::remove_const_t<T>>, {}, {}, nullptr};
}
/// Not of a temporary, which is gone before the view is used.
template <class T>
void view(const T&&) = delete;
/// View of `count` contiguous elements as a one-dimensional tensor.
template <class T>
ViewOf<T> view(T* data, std::int64_t count) {
  return {data, data_type_of<std::remove_const_t<T>>, {count}, {}, nullptr};
}
/// View of contiguous elements with a shape.
template <class T>
ViewOf<T> view(T* data, Shape shape) {
  return {data, data_type_of<std::remove_const_t<T>>, static_cast<Shape&&>(shape), {}, nullptr};
}
/// `{}` could be no elements as well as a scalar: write view(value), a count, or Shape{}.
template <class T>
TensorView view(T* data, std::initializer_list<detail::NoExtent>) = delete;
/// View of all elements as a one-dimensional tensor. A std::span may come and go, its elements
/// stay.
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
