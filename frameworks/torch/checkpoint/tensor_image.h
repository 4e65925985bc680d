/// Named tensors as the bytes of a safetensors file, and back; texts as tensors.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::internal {

/// Its bytes as uint8.
inline at::Tensor text_tensor(std::string_view text) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

/// The bytes of a contiguous tensor on the CPU.
inline std::string text_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;
using Bytes = std::vector<std::byte>;

/// Memory for one file, used again by the next. Thread rule: one thread at a time.
class TensorImage {
 public:
  /// Copies the tensors, of any device, strides and floating point, integer or boolean type; waits
  /// for the device. Throws Error(invalid_argument) naming the one that cannot be written.
  void fill(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata = {});
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

/// Throws as TensorImage::fill() would.
void check_can_fill(const NamedTensors& tensors);

struct ImageContents {
  std::map<std::string, std::string> metadata;
  NamedTensors tensors = NamedTensors();  ///< on the CPU, views of the bytes, which they keep
};

/// The error says what is wrong with the file, or which tensor LibTorch has no type for.
tl::expected<ImageContents, std::string> contents_of(const std::shared_ptr<const Bytes>& file);

}  // namespace hora::internal
