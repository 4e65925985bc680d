/// Dense tensors, numbers, texts, lists and tuples of them, and archives of those, as plain bytes:
/// a peer's are never given to an archive's reader.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/serialize/archive.h>

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/base/checked.h"

namespace hora::internal {

class ByteWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { put_bytes(&value, sizeof value); }
  void put_bytes(const void* data, std::size_t bytes) {
    bytes_.append(static_cast<const char*>(data), bytes);
  }
  /// As BoundedReader::take_text reads it.
  void put_text(std::string_view text) {
    put(std::uint64_t{text.size()});
    put_bytes(text.data(), text.size());
  }
  std::string take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Throws Error(invalid_argument), with `name`, for what is none of these.
void write_value(ByteWriter& writer, const c10::IValue& value, const std::string& name);

/// Reads what write_value wrote; tensors come to the CPU. Throws the reader's Error for other
/// bytes.
c10::IValue read_value(BoundedReader& reader);

/// Returns the archive's bytes, and consumes it. Throws as write_value.
std::string archive_bytes(torch::serialize::OutputArchive& archive, const std::string& name);

/// An archive, made here, of what archive_bytes gave; its tensors on `device`. Throws an Error of
/// this origin for anything else.
torch::serialize::InputArchive archive_of(std::span<const std::byte> bytes,
                                          const BytesOrigin& origin, const torch::Device& device);

}  // namespace hora::internal
