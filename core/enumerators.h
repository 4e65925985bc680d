/// Which numbers are enumerators: of a value that a user casts or a peer sends.
#pragma once

#include <hora/types.h>

#include <type_traits>

namespace hora {

/// The last enumerator of an enumeration that counts from 0 without a gap.
template <class E>
inline constexpr E last_of = [] {
  static_assert(sizeof(E) == 0, "no last enumerator is given for this type");
  return E{};
}();
template <>
inline constexpr DataType last_of<DataType> = DataType::boolean;
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
