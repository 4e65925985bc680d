/// Which elements of which gradients a rank's slices of the buckets hold: ZeRO stage 1, Rajbhandari
/// et al., arXiv 1910.02054, section 5.1. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frameworks/torch/optimizer/bucket_assignment.h"

namespace hora {

/// Consecutive elements of one gradient, in its memory order.
struct ShardPiece {
  std::size_t gradient = 0;
  std::int64_t begin = 0;  ///< element of the gradient
  std::int64_t count = 0;
  std::int64_t offset = 0;  ///< element of the slice
  bool operator==(const ShardPiece&) const = default;
};

/// Elements of one of `slices` equal slices of the places' range, whose layout was made for so
/// many.
std::int64_t slice_elements(const BucketLayout& layout, int slices);

/// The pieces in slice `slice`. `counts[gradient]`: its elements.
std::vector<ShardPiece> pieces_of_slice(const BucketLayout& layout,
                                        std::span<const std::int64_t> counts, int slice,
                                        int slices);

}  // namespace hora
