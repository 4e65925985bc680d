/// Copies past the caches. All in an unnamed namespace (see kernel_table.h).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hora::internal {
namespace {

using Bytes = std::byte;

#if defined(__x86_64__)

/// 64 bytes to a 64-byte-aligned address, past the caches.
inline void stream_line(Bytes* out, const Bytes* in) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(out), _mm512_loadu_si512(in));
#elif defined(__AVX2__)
  for (int k = 0; k < 2; ++k) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out) + k,
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in) + k));
  }
#else
  for (int k = 0; k < 4; ++k) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(out) + k,
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + k));
  }
#endif
}

void stream_copy(Bytes* out, const Bytes* in, std::size_t bytes) {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(out) % 64;
  std::size_t head = misaligned == 0 ? 0 : 64 - misaligned;
  if (head > bytes) head = bytes;
  __builtin_memcpy(out, in, head);
  std::size_t i = head;
  for (; i + 64 <= bytes; i += 64) stream_line(out + i, in + i);
  __builtin_memcpy(out + i, in + i, bytes - i);
  _mm_sfence();
}

#else

void stream_copy(Bytes* out, const Bytes* in, std::size_t bytes) {
  __builtin_memcpy(out, in, bytes);
}

#endif

}  // namespace
}  // namespace hora::internal
