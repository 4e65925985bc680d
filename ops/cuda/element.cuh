/// Elements on the device: words that move several at once, and conversions to and from the type
/// that they are computed in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace hora {
namespace {

/// An unsigned word of the device's load and store instructions.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = std::uint8_t;
};
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <int kBytes>
using Word = typename WordOf<kBytes>::Type;

__device__ float widened(__half value) {
  return __half2float(value);
}
__device__ float widened(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ float widened(float value) {
  return value;
}
__device__ double widened(double value) {
  return value;
}

template <class Target, class Source>
__device__ Target rounded(Source value) {
  if constexpr (std::is_same_v<Target, __half>) {
    if constexpr (std::is_same_v<Source, double>) {
      return __double2half(value);
    } else {
      return __float2half_rn(value);
    }
  } else if constexpr (std::is_same_v<Target, __nv_bfloat16>) {
    if constexpr (std::is_same_v<Source, double>) {
      return __double2bfloat16(value);
    } else {
      return __float2bfloat16_rn(value);
    }
  } else {
    return static_cast<Target>(value);
  }
}

}  // namespace
}  // namespace hora
