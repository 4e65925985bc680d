/// The kernels as compiled for one instruction set. Internal to ops/local and its tests.
///
/// Included by sources with instruction-set flags, so it must not pull in anything with inline
/// functions: the linker would be free to keep their AVX-512 version for everybody.
#pragma once

#include <cstddef>

namespace hora {

inline constexpr std::size_t kDataTypes = 7;
/// The first of them.
inline constexpr std::size_t kFloatTypes = 4;

struct KernelTable {
  const char* instruction_set;
  /// By DataType's number; hora::reduce with at least one input and one element.
  void (*reduce[kDataTypes])(const std::byte* const* inputs, std::size_t input_count,
                             std::byte* const* outputs, std::size_t output_count, std::size_t count,
                             double scale);
  /// Copy by non-temporal stores, fenced; any alignment and length.
  void (*stream_copy)(std::byte* out, const std::byte* in, std::size_t bytes);
  /// By the source's and the target's number; hora::convert. Null where one of them alone is
  /// float64. `limit` is finite in the type of the product. Past the caches only where `out` is
  /// 64-byte aligned and not `in`.
  bool (*convert[kFloatTypes][kFloatTypes])(std::byte* out, const std::byte* in, std::size_t count,
                                            double scale, double limit, bool past_caches);
};

extern const KernelTable kBaselineKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;

/// Tables that this CPU can run, the best first, ended by a null pointer.
const KernelTable* const* runnable_kernels() noexcept;

}  // namespace hora
