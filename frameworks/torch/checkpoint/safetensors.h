/// Named tensors as the bytes of a safetensors file, and back; texts as tensors.
///
/// Format: 8 bytes, little endian: the header's length n; n bytes of JSON, which begin with '{' and
/// may end with spaces; then the tensors' bytes, row-major, little endian, without a gap. The
/// header is {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...},
/// offsets from the header's end, and may hold "__metadata__", an object of texts
/// (github.com/huggingface/safetensors, "Format").
#pragma once

#include <ATen/core/Tensor.h>
#include <hora/types.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::internal {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;
using Bytes = std::vector<std::byte>;
using Metadata = std::map<std::string, std::string>;

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  DataType type = DataType::float32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  ///< bytes from the begin of the file
  std::uint64_t bytes = 0;
  bool operator==(const TensorEntry&) const = default;
};

struct Safetensors {
  Metadata metadata;
  std::vector<TensorEntry> tensors;  ///< in the order of their offsets
};

/// Returns the contents of `file`, all of it in bounds, each byte after the header in exactly one
/// tensor. The error says what is wrong. Pure.
tl::expected<Safetensors, std::string> parse_safetensors(std::span<const std::byte> file);

/// Where each tensor goes.
struct SafetensorsLayout {
  std::string header;                ///< the file's begin, to its first tensor
  std::vector<TensorEntry> tensors;  ///< in the order of their offsets
  std::uint64_t bytes = 0;           ///< of the whole file
};

/// Lays out tensors of these names, types and shapes: byte by byte what the format's own library
/// writes (types of larger alignment first, then by name; the header padded to 8 bytes). The error
/// says which name is given twice or is no UTF-8, or which shape is none. Pure.
tl::expected<SafetensorsLayout, std::string> lay_out_safetensors(std::vector<TensorEntry> tensors,
                                                                 const Metadata& metadata);

/// Makes `image` a file of the tensors, of any device, strides and floating point, integer or
/// boolean type; waits for the device. Its memory is used again. Throws Error(invalid_argument)
/// naming the one that cannot be written.
void fill_image(Bytes& image, const NamedTensors& tensors, const Metadata& metadata = {});

/// Throws as fill_image() would.
void check_can_fill(const NamedTensors& tensors);

struct ImageContents {
  Metadata metadata;
  NamedTensors tensors = NamedTensors();  ///< on the CPU, views of the bytes, which they keep
};

/// The error says what is wrong with the file, or which tensor LibTorch has no type for.
tl::expected<ImageContents, std::string> contents_of(Bytes file);

/// A text's bytes as uint8, and back from a contiguous tensor on the CPU.
at::Tensor text_tensor(std::string_view text);
std::string text_of(const at::Tensor& tensor);

}  // namespace hora::internal
