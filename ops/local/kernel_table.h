/// The kernels as compiled for one instruction set, and the values that they take and give besides
/// elements.
///
/// Included by sources with instruction-set flags, so it must not pull in anything with inline
/// functions: the linker would be free to keep their AVX-512 version for the program.
#pragma once

#include <cstddef>

namespace hora::internal {

/// `pre` multiplies every input element, `post` every result; of floating-point types only.
struct Scales {
  double pre = 1.0;
  double post = 1.0;
};

/// Dots of two vectors a and b, or summed up of pieces of them: a.b, |a|^2 and |b|^2.
struct AdasumDots {
  double dot = 0;
  double norm_a = 0;
  double norm_b = 0;
};

/// Adasum(a, b) = a_factor * a + b_factor * b.
struct AdasumFactors {
  double a = 1;
  double b = 1;
};

inline constexpr std::size_t kDataTypes = 13;
/// float16, bfloat16, float32, float64: the first ones.
inline constexpr std::size_t kFloatingTypes = 4;
/// All but adasum, whose number is the last.
inline constexpr std::size_t kReduceOps = 5;

/// hora::reduce with at least one input and one element.
using ReduceKernel = void (*)(const std::byte* const* inputs, std::size_t input_count,
                              std::byte* const* outputs, std::size_t output_count,
                              std::size_t count, Scales scales);

struct ReduceKernels {
  ReduceKernel plain_sum;          ///< where Scales::pre is 1, or does not apply
  ReduceKernel by_op[kReduceOps];  ///< by ReduceOp's number
};

/// As hora::adasum_dots and hora::adasum_combine.
struct AdasumKernels {
  AdasumDots (*dots)(const std::byte* a, const std::byte* b, std::size_t count);
  void (*combine)(const std::byte* a, const std::byte* b, AdasumFactors factors, std::byte* out,
                  std::size_t count);
};

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

struct KernelTable {
  const char* instruction_set;
  ReduceKernels reduce[kDataTypes];      ///< by DataType's number
  AdasumKernels adasum[kFloatingTypes];  ///< by DataType's number
  /// hora::sum_of_squares, by DataType's number.
  double (*sum_of_squares[kFloatingTypes])(const std::byte* values, std::size_t count);
  /// Copy by non-temporal stores, fenced; any alignment and length.
  void (*stream_copy)(std::byte* out, const std::byte* in, std::size_t bytes);
  /// By the source's and the target's number; hora::convert. Null where one of them alone is
  /// float64. `limit` is finite in the type of the product. Past the caches only where `out` is
  /// 64-byte aligned and not `in`.
  bool (*convert[kFloatingTypes][kFloatingTypes])(std::byte* out, const std::byte* in,
                                                  std::size_t count, double scale, double limit,
                                                  bool past_caches);
  SgdKernel sgd[2];    ///< of float32, float64
  AdamKernel adam[2];  ///< likewise
};

extern const KernelTable kBaselineKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512Bf16Kernels;

/// Tables that this CPU can run, the best first, ended by a null pointer.
const KernelTable* const* runnable_kernels() noexcept;

}  // namespace hora::internal
