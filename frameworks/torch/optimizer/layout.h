/// Places of gradients in buckets, and the part of a bucket that a rank has for itself where
/// gradients are sharded. Pure: the same on every rank.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/control_block/tensor_id.h"

namespace hora::internal {

inline constexpr std::size_t kNeverApart = std::numeric_limits<std::size_t>::max();

/// Each rank sets one of so many lanes, which says what it has called since its last round of
/// averaging (lane_of()); where the sum has two lanes set, ranks are in different steps.
inline constexpr std::size_t step_lanes = 8;

/// One parameter's gradient.
struct GradientSize {
  DataType type = DataType::float32;
  std::size_t bytes = 0;      ///< in `type`
  DataType wire_type = type;  ///< in which it travels
  /// Gradients of one group (and wire type) share a bucket, with no others.
  std::optional<std::size_t> group = std::nullopt;
};

/// A gradient's ranges in its bucket and in gradient memory, from and to multiples of 64 bytes.
struct GradientPlace {
  std::size_t gradient = 0;           ///< index into the list of gradients
  std::size_t offset = 0;             ///< bytes from the bucket's begin
  DataType type = DataType::float32;  ///< of the gradient
  /// Where that is not the bucket's type: bytes from the begin of the gradient memory.
  std::size_t gradient_offset = 0;
  bool operator==(const GradientPlace&) const = default;
};

/// One bucket: the places in the order in which backward is expected to fill them, then lanes of
/// elements of its type, 1 or 0, which are reduced with it: whether this rank has each gradient;
/// whether not all are finite (wire_type.h); the step lanes. Gradients of other types than the
/// bucket's lie, as `.grad` shows them, in gradient memory beside it, which does not travel.
struct BucketLayout {
  DataType type = DataType::float32;  ///< on the wire
  std::vector<GradientPlace> places;
  std::size_t presence_offset = 0;  ///< bytes, a multiple of 64
  std::size_t flag_offset = 0;      ///< bytes
  std::size_t step_offset = 0;      ///< bytes
  std::size_t bytes = 0;            ///< whole length, lanes and flag included
  std::size_t gradient_bytes = 0;   ///< of gradient memory, a multiple of 64
  /// The first places, which are averaged each by itself; the rest, from joint_offset (bytes) on,
  /// in one piece with the lanes. Of shards the pass that updates averages all.
  std::size_t apart = 0;
  std::size_t joint_offset = 0;
  bool operator==(const BucketLayout&) const = default;
};

/// Behind the bucket's elements, in bytes from its begin, and not on the wire: a Location for each
/// place apart, where peers find that gradient; kNowhere: in its place.
std::size_t locations_offset(const BucketLayout& layout);
/// Bytes of the bucket, with its locations.
std::size_t memory_bytes(const BucketLayout& layout);

/// Takes the gradients (in registration order) from last to first, as backward about finishes them.
/// Each goes where it fits best among the open buckets of its wire type: at most two are open, a
/// bucket takes up to 5/4 of `bucket_bytes` (not 0), as they travel, and closes at 3/4. So a tiny
/// gradient before a huge one is joined by later small ones. Buckets come in the order in which
/// their last gradient is expected. `slices`: the places' range is padded so that it can be cut
/// into so many equal ones, of a multiple of 64 bytes. `least_apart`: gradients of so many bytes,
/// in their own type on the wire, are the first of their bucket, and apart.
std::vector<BucketLayout> assign_buckets(std::span<const GradientSize> gradients,
                                         std::size_t bucket_bytes, std::size_t slices = 1,
                                         std::size_t least_apart = kNeverApart);

/// Whether the buckets at each place hold the same gradients, in the same type on the wire.
bool hold_the_same(std::span<const BucketLayout> a, std::span<const BucketLayout> b);

/// Cuts the gradients, in their order, into at most `count` groups of about equal bytes. Gives each
/// gradient's group. `count` must not be 0.
std::vector<std::optional<std::size_t>> equal_groups(std::span<const GradientSize> gradients,
                                                     std::size_t count);

/// Consecutive elements of one gradient, in its memory order, of which a rank keeps the state: ZeRO
/// stage 1, Rajbhandari et al., arXiv 1910.02054, section 5.1.
struct ShardPiece {
  std::size_t gradient = 0;
  std::size_t place = 0;   ///< of the gradient, in the layout
  std::int64_t begin = 0;  ///< element of the gradient
  std::int64_t count = 0;
  std::int64_t offset = 0;  ///< element of the slice
  bool operator==(const ShardPiece&) const = default;
};

/// Elements of one slice of the places' range, whose layout was made for `slices`.
std::int64_t slice_elements(const BucketLayout& layout, int slices);

/// The pieces in slice `slice`. `counts[gradient]`: its elements.
std::vector<ShardPiece> pieces_of_slice(const BucketLayout& layout,
                                        std::span<const std::int64_t> counts, int slice,
                                        int slices);

}  // namespace hora::internal
