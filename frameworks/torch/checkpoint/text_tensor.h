/// Texts and bytes as tensors of uint8.
#pragma once

#include <ATen/Functions.h>

#include <cstring>
#include <string>
#include <string_view>

namespace hora::internal {

inline at::Tensor text_tensor(std::string_view text) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

/// Of a contiguous tensor on the CPU.
inline std::string text_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace hora::internal
