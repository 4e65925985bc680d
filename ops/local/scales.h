/// The factors of a reduction. Included by the kernels: no inline functions (see kernel_table.h).
#pragma once

namespace hora {

/// `pre` multiplies every input element, `post` every result; of floating-point types only.
struct Scales {
  double pre = 1.0;
  double post = 1.0;
};

}  // namespace hora
