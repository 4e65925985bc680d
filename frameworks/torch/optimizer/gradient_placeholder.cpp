#include "frameworks/torch/optimizer/gradient_placeholder.h"

#include <ATen/Functions.h>

namespace hora::internal {

void put_placeholder(const at::Tensor& parameter) {
  parameter.mutable_grad() =
      at::empty(parameter.sizes(), parameter.options().device(at::kMeta).requires_grad(false));
}

void drop_placeholder(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient.is_meta()) gradient.reset();
}

}  // namespace hora::internal
