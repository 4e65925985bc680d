/// CRC-32C, of the Castagnoli polynomial.
#pragma once

#include <cstdint>
#include <string_view>

namespace vision {

/// Of `bytes`: polynomial 0x1edc6f41, bits reflected, start and end inverted, as RFC 3720 (section
/// 12.1, test vectors in appendix B.4) has it; byte by byte with one table (Sarwate, "Computation
/// of cyclic redundancy checks via table look-up", 1988). Pure; any thread.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace vision
