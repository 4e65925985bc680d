/// Arithmetic, copies and optimizers' steps on this rank's view of memory, at the speed of memory.
///
/// Adasum (Maleki et al., arXiv 2006.02924, section 3): Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1
/// - a.b / (2 |b|^2)) b, tensor by tensor, whose elements may lie in pieces: dots of the pieces are
/// summed, the factors made of the sums, and the pieces combined. Floating-point types only; others
/// throw Error(invalid_argument).
#pragma once

#include <hora/export.h>
#include <hora/types.h>

#include <cstddef>
#include <limits>
#include <span>

#include "ops/local/kernel_table.h"

namespace hora::internal {

/// out[o][i] = round(post * (pre * in[0][i] op pre * in[1][i] op ...)) for every o, i in [0,
/// count), where op is + for ReduceOp::sum and average (whose factor is in `scales.post`), min, max
/// or *.
///
/// In the order of `inputs`, in the element type (float16 and bfloat16: in float32, rounded once to
/// nearest even). Scales are of floating-point types, in the type of the sum, skipped where they
/// are 1. Integers wrap. min and max give NaN where an input has one; -0 is less than +0. Booleans
/// are true but for 0; sum and max are or, product and min and.
///
/// The bits do not depend on count, alignment or instruction set, but for a NaN's payload. An
/// output may be an input (not shifted); all are aligned to the element size. Throws
/// Error(invalid_argument) for no input, an unknown type, and an op that is unknown or adasum.
HORA_EXPORT void reduce(DataType type, ReduceOp op, std::span<const std::byte* const> inputs,
                        std::span<std::byte* const> outputs, std::size_t count, Scales scales);

/// out[i] = the identity element of `op`, i in [0, count): 0 for sums (of floating-point types -0,
/// which changes no sign), 1 for products, for min and max the largest and the smallest value of
/// the type (infinities where it has them; for booleans true and false).
void fill_identity(DataType type, ReduceOp op, std::byte* out, std::size_t count);

/// The square of the 2-norm of `count` floating-point values, aligned to their size: in double, by
/// sixteen running sums that take turns and are summed pairwise. The bits depend on values and
/// count alone. Throws Error(invalid_argument) for other types.
HORA_EXPORT double sum_of_squares(DataType type, const std::byte* values, std::size_t count);

/// memcpy to every output.
HORA_EXPORT void copy_to_all(const std::byte* input, std::span<std::byte* const> outputs,
                             std::size_t bytes);

/// memcpy with non-temporal stores for blocks that are too large to be read again from this core's
/// cache; complete (fenced) when it returns.
HORA_EXPORT void stream_copy(std::byte* out, const std::byte* in, std::size_t bytes);

/// The same for memory that other cores have used, and will read: smaller blocks gain as well, for
/// their lines are not fetched from those caches before they are written.
void publish_copy(std::byte* out, const std::byte* in, std::size_t bytes);

/// The instruction set in use: "avx512_bf16", "avx512", "avx2" or "baseline". Chosen once from the
/// CPU.
const char* kernel_instruction_set() noexcept;

/// float16/bfloat16 <-> float32, round to nearest even; for tests and tools.
std::uint16_t to_float16(float value) noexcept;
float from_float16(std::uint16_t bits) noexcept;
std::uint16_t to_bfloat16(float value) noexcept;
float from_bfloat16(std::uint16_t bits) noexcept;

/// Dots of `count` elements, in double, in which a product of two elements is exact but for
/// float64. Sixteen running sums take turns and are summed pairwise in the end: the bits depend on
/// the values and count alone, not on alignment or instruction set.
AdasumDots adasum_dots(DataType type, const std::byte* a, const std::byte* b, std::size_t count);

/// A gradient shorter than 2^-100 of the other, above all a zero one, has no direction that counts:
/// both factors are 1 then, which makes the other one the result. (That also keeps the factors in
/// float32's range.) NaN where a dot is.
AdasumFactors adasum_factors(const AdasumDots& dots) noexcept;

/// out[i] = round(factors.a * a[i] + factors.b * b[i]), each operation in float32 (float64: in
/// float64), the result rounded once to the type. `out` may be a or b (exactly, not shifted).
void adasum_combine(DataType type, const std::byte* a, const std::byte* b, AdasumFactors factors,
                    std::byte* out, std::size_t count);

/// Options of convert().
struct Conversion {
  double scale = 1.0;
  /// The largest magnitude that a product may have.
  double limit = std::numeric_limits<double>::max();
};

/// out[i] = in[i] * scale for i in [0, count), formed in float32, or float64 where either type is
/// that, and rounded once to the target's type, to nearest even. Returns false where a product is
/// NaN, infinite, or of a magnitude above the limit; all are written all the same.
///
/// The bits do not depend on count, alignment or instruction set, but for a NaN's payload. `out`
/// may be `in` where the types are equal, else they do not overlap; both are aligned. Large blocks
/// at 64-byte aligned places are written past the caches. Throws Error(invalid_argument) for other
/// types than floating-point ones.
HORA_EXPORT bool convert(DataType source, const std::byte* in, DataType target, std::byte* out,
                         std::size_t count, const Conversion& conversion = {});

/// The arrays that update() reads and writes, each of as many elements.
struct UpdateMemory {
  std::byte* parameter = nullptr;
  /// At least one. The step's gradient is their sum, in their order, with the bits that reduce()
  /// would give.
  std::span<const std::byte* const> gradients = {};
  Scales scales = {};
  /// SGD: {momentum buffer}, or none without momentum. Adam: {average, square}, and {largest} with
  /// amsgrad.
  std::byte* state[3] = {};
  /// Where the new parameter is written as well: other ranks' memory, past this core's cache.
  std::span<std::byte* const> copies = {};
};

/// One step of elements [begin, end) of float32 or float64 arrays, aligned and apart, as SgdStep
/// and AdamStep say, each operation and factor rounded to the type. The bits do not depend on the
/// range, alignment or instruction set. Copies are fenced when it returns. Throws
/// Error(invalid_argument) for other types and no gradient. Thread rule: any thread, of elements
/// that no other updates.
HORA_EXPORT void update(DataType type, const SgdStep& step, const UpdateMemory& memory,
                        std::size_t begin, std::size_t end);
HORA_EXPORT void update(DataType type, const AdamStep& step, const UpdateMemory& memory,
                        std::size_t begin, std::size_t end);

}  // namespace hora::internal
