#include "frameworks/torch/finite/finite_values.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

Finite state_of(double value) {
  if (std::isnan(value)) return Finite::nan;
  return std::isinf(value) ? Finite::infinite : Finite::yes;
}

/// The sum of squares is NaN where a value is, and no infinity makes it one. In double, squares of
/// smaller types do not overflow.
Finite look_exactly(const at::Tensor& values) {
  const at::Tensor dense = values.is_non_overlapping_and_dense() ? values : values.contiguous();
  const at::Tensor flat = in_memory_order(dense);
  const auto type = to_data_type(flat.scalar_type());
  if (!type || !is_floating_point(*type)) return look_exactly(flat.to(at::kDouble));
  const Finite squares =
      state_of(sum_of_squares(*type, static_cast<const std::byte*>(flat.data_ptr()),
                              static_cast<std::size_t>(flat.numel())));
  if (squares != Finite::infinite || *type != DataType::float64) return squares;
  return flat.isinf().any().item<bool>() ? Finite::infinite : Finite::yes;
}

}  // namespace

at::Tensor real_values(const at::Tensor& tensor) {
  at::Tensor values = tensor;
  if (values.layout() == at::kSparse) {
    values = values._values();
  } else if (values.layout() != at::kStrided) {
    values = values.to_dense();
  }
  return values.is_complex() ? at::view_as_real(values.resolve_conj()) : values;
}

Finite look_at(const at::Tensor& values) {
  // LibTorch adds these up with all threads and the widest instructions. In smaller types the sum
  // would overflow often.
  if (values.scalar_type() == at::kFloat || values.scalar_type() == at::kDouble) {
    if (std::isfinite(values.sum().item<double>())) return Finite::yes;
  }
  return look_exactly(values);
}

at::Tensor largest_magnitude(const at::Tensor& values) {
  if (values.numel() == 0) return at::zeros({}, values.options());
  return at::linalg_vector_norm(values, std::numeric_limits<double>::infinity());
}

}  // namespace hora::internal
