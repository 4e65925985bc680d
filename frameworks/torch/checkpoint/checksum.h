/// Checksums of files.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace hora::internal {

/// XXH3 with 128 bits, as 32 hexadecimal digits (libxxhash's XXH128_canonicalFromHash, and what
/// `xxh128sum` prints). It finds every flip and truncation but one in 2^128, at several times the
/// speed of CRC-32, which with its 32 bits would miss one in 2^32 of longer damage. It is no
/// protection against forgery.
std::string checksum_of(std::span<const std::byte> bytes);

}  // namespace hora::internal
