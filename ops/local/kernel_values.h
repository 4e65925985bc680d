/// What the kernels take and give besides elements. Included by the kernels: no inline functions
/// (see kernel_table.h).
#pragma once

namespace hora::internal {

/// `pre` multiplies every input element, `post` every result; of floating-point types only.
struct Scales {
  double pre = 1.0;
  double post = 1.0;
};

/// Of two vectors a and b, or summed up of pieces of them: a.b, |a|^2 and |b|^2.
struct AdasumDots {
  double dot = 0;
  double norm_a = 0;
  double norm_b = 0;
};

/// Adasum(a, b) = a_factor * a + b_factor * b.
struct AdasumFactors {
  double a = 1;
  double b = 1;
};

}  // namespace hora::internal
