/// How the scale of the loss grows and backs off. Pure.
#pragma once

#include <hora/torch/grad_scaler.h>

#include <string>

namespace hora::internal {

struct LossScale {
  double scale = 1.0;
  int finite_steps = 0;  ///< since the scale changed last
  bool operator==(const LossScale&) const = default;
};

/// After a step whose gradients were all finite, or were not: dynamic loss scaling (Micikevicius et
/// al., arXiv 1710.03740, section 3.2) with torch.amp's rule. A scale that float32 cannot hold is
/// not grown to; nor does it fall below the smallest normal float32.
LossScale next_scale(const LossScale& now, const GradScalerOptions& options, bool finite);

/// Throws Error(invalid_argument) naming the option, its value and what is allowed.
void check_options(const GradScalerOptions& options);

/// All options, to the bit.
std::string describe(const GradScalerOptions& options);

}  // namespace hora::internal
