/// Are a tensor's values finite?
#pragma once

#include <ATen/core/Tensor.h>

#include "frameworks/torch/finite/finding.h"

namespace hora::internal {

/// The floating-point or complex values of a tensor, real and dense; of a sparse one those stored.
at::Tensor real_values(const at::Tensor& tensor);

/// Looks at real values in this host's memory: one pass, and others where their sum is not finite.
Finite look_at(const at::Tensor& values);

/// Reduces real values on any device, in the order of the current stream, without waiting: one
/// element, of which look_at() tells the same. Zero of no values.
at::Tensor largest_magnitude(const at::Tensor& values);

}  // namespace hora::internal
