/// Placeholder in a parameter's `.grad` while the averages are elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

namespace hora::internal {

/// A gradient that cannot be read: LibTorch throws where a value is wanted, as by its
/// clip_grad_norm_(), which skips undefined gradients silently.
void put_placeholder(const at::Tensor& parameter);
/// Makes `.grad` undefined where it is one.
void drop_placeholder(const at::Tensor& parameter);

}  // namespace hora::internal
