/// Elements on the device: words that move several at once, and conversions to and from the type
/// that they are computed in.
///
/// Elements in reductions on the device, with the bits of ops/local.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace hora::internal {
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

namespace {

/// How elements stored as T are summed. The intrinsics are never fused into a multiply-add, which
/// would round once less than the host does.
template <class T>
struct Arithmetic {
  using Value = T;
  static __device__ Value load(T stored) { return stored; }
  static __device__ T store(Value value) { return value; }
  static __device__ Value scaled(Value value, double) { return value; }
};
template <>
struct Arithmetic<float> {
  using Value = float;
  static __device__ Value load(float stored) { return stored; }
  static __device__ float store(Value value) { return value; }
  static __device__ Value scaled(Value value, double scale) {
    return __fmul_rn(value, static_cast<float>(scale));
  }
};
template <>
struct Arithmetic<double> {
  using Value = double;
  static __device__ Value load(double stored) { return stored; }
  static __device__ double store(Value value) { return value; }
  static __device__ Value scaled(Value value, double scale) { return __dmul_rn(value, scale); }
};
template <class Half>
struct HalfArithmetic : Arithmetic<float> {
  static __device__ float load(Half stored) { return widened(stored); }
  static __device__ Half store(float value) { return rounded<Half>(value); }
};
template <>
struct Arithmetic<__half> : HalfArithmetic<__half> {};
template <>
struct Arithmetic<__nv_bfloat16> : HalfArithmetic<__nv_bfloat16> {};

/// A boolean: a byte of which every value but 0 is true.
struct Truth {
  std::uint8_t byte;
};
template <>
struct Arithmetic<Truth> {
  using Value = std::uint8_t;
  static __device__ Value load(Truth stored) { return stored.byte != 0 ? 1 : 0; }
  static __device__ Truth store(Value value) { return {value}; }
  static __device__ Value scaled(Value value, double) { return value; }
};

/// Two truths, 0 or 1 each, become one.
struct Or {
  static __device__ std::uint8_t combine(std::uint8_t a, std::uint8_t b) { return a | b; }
};
struct And {
  static __device__ std::uint8_t combine(std::uint8_t a, std::uint8_t b) { return a & b; }
};

/// Two values become one. Each operation says which one is meant for booleans, and as what it takes
/// signed integers: as unsigned ones where they wrap.
struct Sum {
  using OfTruth = Or;
  template <class Signed>
  using Integer = std::make_unsigned_t<Signed>;
  static __device__ float combine(float a, float b) { return __fadd_rn(a, b); }
  static __device__ double combine(double a, double b) { return __dadd_rn(a, b); }
  template <class Unsigned>
  static __device__ Unsigned combine(Unsigned a, Unsigned b) {
    return static_cast<Unsigned>(a + b);
  }
};

struct Product {
  using OfTruth = And;
  template <class Signed>
  using Integer = std::make_unsigned_t<Signed>;
  static __device__ float combine(float a, float b) { return __fmul_rn(a, b); }
  static __device__ double combine(double a, double b) { return __dmul_rn(a, b); }
  template <class Unsigned>
  static __device__ Unsigned combine(Unsigned a, Unsigned b) {
    return static_cast<Unsigned>(1U * a * b);  // never in a signed type, as short ones would be
  }
};

/// Whether `b` is taken though no less and no more than `a`, as in ops/local (kernel_code.h):
/// NaN where one is, and -0 below +0.
template <class Value>
__device__ bool is_chosen_last(Value a, Value b, bool negative_wins) {
  if constexpr (std::is_floating_point_v<Value>) {
    return b != b || (a == b && signbit(negative_wins ? b : a));
  } else {
    return false;
  }
}

struct Minimum {
  using OfTruth = And;
  template <class Signed>
  using Integer = Signed;
  template <class Value>
  static __device__ Value combine(Value a, Value b) {
    return b < a || is_chosen_last(a, b, true) ? b : a;
  }
};

struct Maximum {
  using OfTruth = Or;
  template <class Signed>
  using Integer = Signed;
  template <class Value>
  static __device__ Value combine(Value a, Value b) {
    return a < b || is_chosen_last(a, b, false) ? b : a;
  }
};

}  // namespace
}  // namespace hora::internal
