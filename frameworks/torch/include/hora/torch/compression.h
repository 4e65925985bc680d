/// In which type gradients and other tensors travel; no LibTorch needed.
///
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
///         {.compression = hora::Compression::bfloat16});
///
/// Thread rule: any thread.
#pragma once

#include <hora/export.h>

#include <string_view>

namespace HORA_EXPORT hora {

/// Gradients of a wider floating-point type are rounded to this one on their way into a bucket,
/// averaged in it, and widened again into `.grad`, which keeps the parameter's type. Gradients that
/// are as narrow already, or narrower, travel as they are. The same of tensors that allreduce is
/// given; those of other types travel as they are.
enum class Compression {
  none,
  float16,  ///< 11 significant bits, up to 65504, vanishing below 6e-8: scale the loss (GradScaler)
  bfloat16,  ///< 8 significant bits in float32's range
};
/// "none", "float16", "bfloat16".
std::string_view name_of(Compression compression) noexcept;

}  // namespace hora
