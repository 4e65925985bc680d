/// Adaptive summation of gradients: Maleki, Musuvathi, Mytkowicz, Saarikivi, Xu, Eksarevskiy,
/// Ekanayake, Barsoum, "Scaling Distributed Training with Adaptive Summation", 2020, arXiv
/// 2006.02924, section 3:
///
///     Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
///
/// The sum of orthogonal gradients, the average of parallel ones. Taken tensor by tensor, whose
/// elements may lie in pieces: dots of the pieces are summed, the factors made of the sums, and the
/// pieces combined. Floating-point types only; others throw Error(invalid_argument).
#pragma once

#include <hora/types.h>

#include <cstddef>

#include "ops/local/kernel_values.h"

namespace hora::internal {

/// Of `count` elements, in double, in which a product of two elements is exact but for float64.
/// Sixteen running sums take turns and are summed pairwise in the end: the bits depend on the
/// values and count alone, not on alignment or instruction set.
AdasumDots adasum_dots(DataType type, const std::byte* a, const std::byte* b, std::size_t count);

/// A gradient shorter than 2^-100 of the other, above all a zero one, has no direction that counts:
/// both factors are 1 then, which makes the other one the result. (That also keeps the factors in
/// float32's range.) NaN where a dot is.
AdasumFactors adasum_factors(const AdasumDots& dots) noexcept;

/// out[i] = round(factors.a * a[i] + factors.b * b[i]), each operation in float32 (float64: in
/// float64), the result rounded once to the type. `out` may be a or b (exactly, not shifted).
void adasum_combine(DataType type, const std::byte* a, const std::byte* b, AdasumFactors factors,
                    std::byte* out, std::size_t count);

}  // namespace hora::internal
