#include "frameworks/torch/checkpoint/checksum.h"

// The library's header alone: programs need not link it.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hora::internal {

std::string checksum_of(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace hora::internal
