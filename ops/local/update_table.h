/// An optimizer's step on each element, and the update kernels as compiled for one instruction set.
/// Included by sources with instruction-set flags: no inline functions (see kernel_table.h).
#pragma once

#include <cstddef>

#include "ops/local/kernel_table.h"

namespace hora::internal {

/// Rounding of a product and the addition that follows it: `fused` rounds once, `separate` twice.
enum class Rounding : unsigned char { separate, fused };

/// Stochastic gradient descent with momentum: Sutskever et al., "On the importance of
/// initialization and momentum in deep learning", ICML 2013, in LibTorch's form and order:
///
///     d = gradient + weight_decay * parameter             where weight_decay is not 0
///     buffer = momentum * buffer + (1 - dampening) * d    where momentum is not 0; first: = d
///     d = nesterov ? d + momentum * buffer : buffer       where momentum is not 0
///     parameter = parameter + -rate * d
struct SgdStep {
  double rate = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  ///< the buffer holds nothing yet: it is only written
  Rounding rounding = Rounding::separate;

  bool operator==(const SgdStep&) const = default;
};

/// Adam: Kingma and Ba, arXiv 1412.6980, algorithm 1; AMSGrad: Reddi et al., ICLR 2018; AdamW:
/// Loshchilov and Hutter, arXiv 1711.05101. In LibTorch's form and order:
///
///     parameter = parameter * decay                       where decay is not 1
///     g = gradient + weight_decay * parameter             where weight_decay is not 0
///     average = beta1 * average + (1 - beta1) * g
///     square = beta2 * square + ((1 - beta2) * g) * g
///     largest = max(largest, square)                      with amsgrad, in place of square below
///     parameter = parameter + (-rate * average) / (sqrt(square) / root + epsilon)
struct AdamStep {
  double rate = 0;  ///< over the first bias correction, 1 - beta1^step
  double root = 1;  ///< the square root of the second one, 1 - beta2^step
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  double decay = 1;
  bool amsgrad = false;
  Rounding rounding = Rounding::separate;         ///< but for the next
  Rounding square_rounding = Rounding::separate;  ///< of the product that is added to `square`

  bool operator==(const AdamStep&) const = default;
};

/// UpdateMemory without the standard library's types.
struct UpdateArrays {
  std::byte* parameter = nullptr;
  const std::byte* const* gradients = nullptr;
  std::size_t gradient_count = 0;
  Scales scales;
  std::byte* state[3] = {};
  std::byte* const* copies = nullptr;
  std::size_t copy_count = 0;
  bool streams = false;  ///< copies are written past the cache, where their alignment allows it
};

/// hora::update.
using SgdKernel = void (*)(const SgdStep& step, const UpdateArrays& arrays, std::size_t begin,
                           std::size_t end);
using AdamKernel = void (*)(const AdamStep& step, const UpdateArrays& arrays, std::size_t begin,
                            std::size_t end);

struct UpdateTable {
  const char* instruction_set;
  SgdKernel sgd[2];    ///< of float32, float64
  AdamKernel adam[2];  ///< likewise
};

extern const UpdateTable kBaselineUpdates;
extern const UpdateTable kAvx2Updates;
extern const UpdateTable kAvx512Updates;

/// Tables that this CPU can run, the best first, ended by a null pointer.
const UpdateTable* const* runnable_updates() noexcept;

}  // namespace hora::internal
