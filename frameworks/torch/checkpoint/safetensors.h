/// The file format "safetensors" over memory: reading with every check, and layout for writing.
/// Pure.
///
/// Format: 8 bytes, little endian: the header's length n; n bytes of JSON, which begin with '{' and
/// may end with spaces; then the tensors' bytes, row-major, little endian, without a gap. The
/// header is {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...},
/// offsets from the header's end, and may hold "__metadata__", an object of texts
/// (github.com/huggingface/safetensors, "Format").
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace hora::internal {

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
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  ///< in the order of their offsets
};

/// A header that is longer is refused, as the format's own library does.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// Returns the contents of `file`, all of it in bounds, each byte after the header in exactly one
/// tensor. The error says what is wrong.
tl::expected<Safetensors, std::string> parse_safetensors(std::span<const std::byte> file);

/// Where each tensor goes.
struct SafetensorsLayout {
  std::string header;                ///< the file's begin, to its first tensor
  std::vector<TensorEntry> tensors;  ///< in the order of their offsets
  std::uint64_t bytes = 0;           ///< of the whole file
};

/// Lays out tensors of these names, types and shapes: byte by byte what the format's own library
/// writes (types of larger alignment first, then by name; the header padded to 8 bytes). The error
/// says which name is given twice or is no UTF-8, or which shape is none.
tl::expected<SafetensorsLayout, std::string> lay_out_safetensors(
    std::vector<TensorEntry> tensors, const std::map<std::string, std::string>& metadata);

}  // namespace hora::internal
