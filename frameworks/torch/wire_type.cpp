#include "frameworks/torch/wire_type.h"

namespace hora {

std::string_view name_of(Compression compression) noexcept {
  switch (compression) {
    case Compression::float16:
      return "float16";
    case Compression::bfloat16:
      return "bfloat16";
    default:
      return "none";
  }
}

DataType wire_type(Compression compression, DataType type) noexcept {
  if (compression == Compression::none) return type;
  const DataType wire =
      compression == Compression::float16 ? DataType::float16 : DataType::bfloat16;
  return size_of(type) > size_of(wire) ? wire : type;
}

}  // namespace hora
