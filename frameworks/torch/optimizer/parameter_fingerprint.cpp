#include "frameworks/torch/optimizer/parameter_fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace hora::internal {

std::uint64_t fingerprint_of(const std::vector<Parameter>& parameters, std::int64_t samples) {
  std::uint64_t sum = 0;
  for (const Parameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const auto& version = tensor.unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) sum += version.current_version();
    if (!tensor.is_cpu() || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense()) continue;
    const auto* values = static_cast<const std::byte*>(tensor.data_ptr());
    const auto bytes = static_cast<std::size_t>(tensor.element_size());
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      const std::int64_t index =
          sample * (tensor.numel() - 1) / std::max<std::int64_t>(samples - 1, 1);
      std::uint64_t bits = 0;
      std::memcpy(&bits, values + static_cast<std::size_t>(index) * bytes, bytes);
      sum = sum * 31 + bits;
    }
  }
  return sum;
}

}  // namespace hora::internal
