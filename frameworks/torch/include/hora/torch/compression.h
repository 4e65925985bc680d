/// The type in which gradients and other tensors travel; no LibTorch needed.
///
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
///         {.compression = hora::Compression::bfloat16});
#pragma once

#include <hora/export.h>

#include <string_view>

namespace HORA_EXPORT hora {

/// Rounds gradients and tensors of a wider floating-point type on their way into a bucket, averages
/// them so, and widens the result to their own type. Others travel as they are.
enum class Compression {
  none,
  float16,  ///< 11 significant bits, up to 65504, vanishing below 6e-8: scale the loss (GradScaler)
  bfloat16,  ///< 8 significant bits in float32's range
};

constexpr std::string_view name_of(Compression compression) noexcept {
  if (compression == Compression::float16) return "float16";
  return compression == Compression::bfloat16 ? "bfloat16" : "none";
}

}  // namespace hora
