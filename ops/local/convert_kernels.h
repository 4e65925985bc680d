/// The conversion kernels, on element.h; part of kernel_variant.h.
#pragma once

#include "ops/local/element.h"

namespace hora::internal {
namespace {

/// The largest magnitude among the values seen, lane by lane. Without the sign bit, the bits of
/// floating-point numbers are in the order of magnitudes, and after them come infinity and NaN.
template <class E>
class Largest {
 public:
  void see(typename E::Vector values) {
    const Bits sign = __builtin_bit_cast(Bits, -typename E::Vector{});
    const Bits magnitude = __builtin_bit_cast(Bits, values) & ~sign;
    bits_ = magnitude > bits_ ? magnitude : bits_;
  }
  bool is_at_most(typename E::Scalar limit) const {
    const Bits most = __builtin_bit_cast(Bits, typename E::Vector{} + limit);
    for (std::size_t lane = 0; lane < E::kLanes; ++lane) {
      if (bits_[lane] > most[lane]) return false;
    }
    return true;
  }

 private:
  using Bits = decltype(typename E::Vector{} > typename E::Vector{});
  Bits bits_{};
};

/// The target's vector past the caches; `to` is aligned to it.
template <class Stored, class E>
inline void store_past_caches(Stored* to, typename E::Vector vector) {
#if defined(__x86_64__)
  Stored stored[E::kLanes];
  E::store(stored, vector);
  if constexpr (sizeof(stored) == 8) {
    long long bits;
    __builtin_memcpy(&bits, stored, 8);
    _mm_stream_si64(reinterpret_cast<long long*>(to), bits);
  } else if constexpr (sizeof(stored) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), load_vector<__m128i>(stored));
  }
#if defined(__AVX2__)
  if constexpr (sizeof(stored) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), load_vector<__m256i>(stored));
  }
#endif
#if defined(__AVX512F__)
  if constexpr (sizeof(stored) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), load_vector<__m512i>(stored));
  }
#endif
#else
  E::store(to, vector);
#endif
}

/// One conversion: the elements in order, several vectors at a time.
template <class Source, class Target, bool kPastCaches>
struct ConversionLoop {
  static constexpr std::size_t kLanes = Source::kLanes;
  typename Target::Stored* out;
  const typename Source::Stored* in;
  typename Source::Scalar scale;
  Largest<Source> largest = {};

  /// Elements [i, i + kVectors vectors): everything is read before anything is written.
  template <std::size_t kVectors>
  void step(std::size_t i) {
    typename Source::Vector values[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) values[v] = Source::load(in + i + v * kLanes);
    for (std::size_t v = 0; v < kVectors; ++v) {
      values[v] = Source::scaled(values[v], scale);
      largest.see(values[v]);
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      auto* const to = out + i + v * kLanes;
      if constexpr (kPastCaches) {
        store_past_caches<typename Target::Stored, Target>(to, values[v]);
      } else {
        Target::store(to, values[v]);
      }
    }
  }

  /// Elements [i, count), fewer than a vector.
  void tail(std::size_t i, std::size_t count) {
    typename Source::Stored padded[kLanes] = {};
    __builtin_memcpy(padded, in + i, (count - i) * sizeof(*in));
    const auto values = Source::scaled(Source::load(padded), scale);
    largest.see(values);
    typename Target::Stored result[kLanes];
    Target::store(result, values);
    __builtin_memcpy(out + i, result, (count - i) * sizeof(*out));
  }

  void run(std::size_t count) {
    constexpr std::size_t kVectors = 4;
    std::size_t i = 0;
    for (; i + kVectors * kLanes <= count; i += kVectors * kLanes) step<kVectors>(i);
    for (; i + kLanes <= count; i += kLanes) step<1>(i);
    if (i < count) tail(i, count);
#if defined(__x86_64__)
    if constexpr (kPastCaches) _mm_sfence();
#endif
  }
};

/// Source and target have one type of vector.
template <class Source, class Target>
bool convert(std::byte* out, const std::byte* in, std::size_t count, double scale, double limit,
             bool past_caches) {
  auto* const to = reinterpret_cast<typename Target::Stored*>(out);
  const auto* const from = reinterpret_cast<const typename Source::Stored*>(in);
  const auto factor = static_cast<typename Source::Scalar>(scale);
  const auto most = static_cast<typename Source::Scalar>(limit);
  if (past_caches) {
    ConversionLoop<Source, Target, true> loop{to, from, factor};
    loop.run(count);
    return loop.largest.is_at_most(most);
  }
  ConversionLoop<Source, Target, false> loop{to, from, factor};
  loop.run(count);
  return loop.largest.is_at_most(most);
}

}  // namespace
}  // namespace hora::internal
