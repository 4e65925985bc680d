#include "frameworks/torch/optim/libtorch_rounding.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <limits>

namespace hora::internal {
namespace {

/// Enough for the vector registers' code, and for what follows it.
constexpr std::int64_t kElements = 67;

// (1 + e)^2 - 1 = 2 e + e^2: the last term is lost where the square is rounded before the
// subtraction.
template <class T>
LibTorchRounding find_out(c10::ScalarType type) {
  const at::NoGradGuard no_grad;
  const double e = 8 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const at::Tensor factor = at::full({kElements}, 1 + e, type);
  const at::Tensor minus_one = at::full({kElements}, -1.0, type);
  const auto fuses = [&](const at::Tensor& result) {
    return result.ne(2 * e).all().template item<bool>() ? Rounding::fused : Rounding::separate;
  };
  return {fuses(at::add(minus_one, factor, 1 + e)),
          fuses(at::addcmul(minus_one, factor, factor, 1.0))};
}

}  // namespace

const LibTorchRounding& libtorch_rounding(c10::ScalarType type) {
  static const LibTorchRounding single = find_out<float>(at::kFloat);
  static const LibTorchRounding wide = find_out<double>(at::kDouble);
  return type == at::kDouble ? wide : single;
}

}  // namespace hora::internal
