#include "frameworks/torch/wire_type.h"

#include <limits>

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

}  // namespace hora

namespace hora::internal {

std::string wrong_with(Compression compression) {
  if (compression == Compression::none || name_of(compression) != "none") return {};
  return "compression is " + std::to_string(static_cast<int>(compression)) +
         "; expected none, float16 or bfloat16";
}

DataType wire_type(Compression compression, DataType type) noexcept {
  if (compression == Compression::none) return type;
  const DataType wire =
      compression == Compression::float16 ? DataType::float16 : DataType::bfloat16;
  return size_of(type) > size_of(wire) ? wire : type;
}

namespace {

double largest_finite(DataType type) noexcept {
  switch (type) {
    case DataType::float16:
      return 0x1.ffcp15;
    case DataType::bfloat16:
      return 0x1.fep127;
    case DataType::float32:
      return static_cast<double>(std::numeric_limits<float>::max());
    default:
      return std::numeric_limits<double>::max();
  }
}

}  // namespace

double GradientPass::limit(DataType type) const noexcept {
  return largest_finite(type) / terms;
}

GradientPasses gradient_passes(DataType wire, std::optional<double> unscale, int ranks) noexcept {
  if (!unscale) return {};
  if (wire == DataType::float16) return {{}, {*unscale, true, 1}};
  return {{*unscale, true, 2 * ranks}, {}};
}

}  // namespace hora::internal
