#include <hora/error.h>

#include <string>

#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// Of |a|^2 to |b|^2.
constexpr double kNegligible = 0x1p-200;

const AdasumKernels& kernels_of(DataType type) {
  if (!is_floating_point(type)) {
    throw Error(
        ErrorCode::invalid_argument,
        "Adasum is defined for floating-point types, not for " + std::string(name_of(type)));
  }
  return runnable_kernels()[0]->adasum[static_cast<std::size_t>(type)];
}

}  // namespace

AdasumDots adasum_dots(DataType type, const std::byte* a, const std::byte* b, std::size_t count) {
  return kernels_of(type).dots(a, b, count);
}

AdasumFactors adasum_factors(const AdasumDots& dots) noexcept {
  if (dots.norm_a <= kNegligible * dots.norm_b || dots.norm_b <= kNegligible * dots.norm_a) {
    return {1, 1};
  }
  return {1 - dots.dot / dots.norm_a / 2, 1 - dots.dot / dots.norm_b / 2};
}

void adasum_combine(DataType type, const std::byte* a, const std::byte* b, AdasumFactors factors,
                    std::byte* out, std::size_t count) {
  kernels_of(type).combine(a, b, factors, out, count);
}

}  // namespace hora::internal
