/// Arithmetic and copies on this rank's view of memory, at the speed of memory.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <span>

namespace hora {

/// out[o][i] = round((in[0][i] + in[1][i] + ... ) * scale) for every o, i in [0, count).
///
/// Summed in the order of `inputs`, in the element type (float16 and bfloat16: in float32, rounded
/// once to nearest even; integers wrap; scale is applied to floating-point types only, in the type
/// of the sum, and skipped where it is 1). The bits do not depend on count, alignment or
/// instruction set, but for a NaN's payload. An output may be the same memory as an input (exactly,
/// not shifted). At least one input; inputs and outputs aligned to the element size. Reads each
/// input once and writes each output once. Throws Error(invalid_argument) for no input and for an
/// unknown type.
void reduce(DataType type, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count, double scale);

/// memcpy to every output.
void spread(const std::byte* input, std::span<std::byte* const> outputs, std::size_t bytes);

/// memcpy with non-temporal stores for blocks that are too large to be read again from this core's
/// cache; complete (fenced) when it returns.
void stream_copy(std::byte* out, const std::byte* in, std::size_t bytes);

/// The instruction set in use: "avx512", "avx2" or "baseline". Chosen once from the CPU.
const char* kernel_instruction_set() noexcept;

/// float16/bfloat16 <-> float32, round to nearest even; for tests and tools.
std::uint16_t to_float16(float value) noexcept;
float from_float16(std::uint16_t bits) noexcept;
std::uint16_t to_bfloat16(float value) noexcept;
float from_bfloat16(std::uint16_t bits) noexcept;

}  // namespace hora
