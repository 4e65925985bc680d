#include "frameworks/torch/optimizer/shard_pieces.h"

#include <algorithm>

namespace hora {

std::int64_t slice_elements(const BucketLayout& layout, int slices) {
  return static_cast<std::int64_t>(layout.presence_offset / size_of(layout.type)) / slices;
}

std::vector<ShardPiece> pieces_of_slice(const BucketLayout& layout,
                                        std::span<const std::int64_t> counts, int slice,
                                        int slices) {
  const std::int64_t length = slice_elements(layout, slices);
  const std::int64_t first = length * slice;
  std::vector<ShardPiece> pieces;
  for (const GradientPlace& place : layout.places) {
    const auto start = static_cast<std::int64_t>(place.offset / size_of(layout.type));
    const std::int64_t from = std::max(start, first);
    const std::int64_t to = std::min(start + counts[place.gradient], first + length);
    if (from < to) pieces.push_back({place.gradient, from - start, to - from, from - first});
  }
  return pieces;
}

}  // namespace hora
