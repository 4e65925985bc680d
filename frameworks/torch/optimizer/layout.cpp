#include "frameworks/torch/optimizer/layout.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "core/base/checked.h"

namespace hora::internal {
namespace {

constexpr std::size_t max_open_buckets = 2;  // of one type

struct OpenBucket {
  DataType type;
  std::optional<std::size_t> group;
  bool open;
  std::vector<GradientPlace> apart = {};  // each place's offset is its padded length
  std::vector<GradientPlace> joint = {};
  std::size_t last = 0;            // gradient that completes it
  std::size_t filled = 0;          // bytes, padded
  std::size_t gradient_bytes = 0;  // of gradient memory
};

/// Lays its places one behind the other.
BucketLayout layout_of(const OpenBucket& bucket, std::size_t slices) {
  BucketLayout layout;
  layout.type = bucket.type;
  layout.gradient_bytes = bucket.gradient_bytes;
  layout.apart = bucket.apart.size();
  std::size_t offset = 0;
  for (const auto* places : {&bucket.apart, &bucket.joint}) {
    layout.joint_offset = offset;
    for (GradientPlace place : *places) {
      offset += std::exchange(place.offset, offset);
      layout.places.push_back(place);
    }
  }
  const std::size_t element = size_of(bucket.type);
  layout.presence_offset = align_up((bucket.filled + slices - 1) / slices) * slices;
  layout.flag_offset = layout.presence_offset + layout.places.size() * element;
  layout.step_offset = layout.flag_offset + element;
  layout.bytes = layout.step_offset + step_lanes * element;
  return layout;
}

OpenBucket& of_group(std::vector<OpenBucket>& buckets, DataType type, std::size_t group) {
  const auto found = std::ranges::find_if(buckets, [&](const OpenBucket& bucket) {
    return bucket.group == group && bucket.type == type;
  });
  return found != buckets.end() ? *found : buckets.emplace_back(OpenBucket{type, group, false});
}

/// `most`: bytes that a bucket takes. `enough`: with so many it closes.
OpenBucket& best_fit(std::vector<OpenBucket>& buckets, DataType type, std::size_t padded,
                     std::size_t most, std::size_t enough) {
  OpenBucket* best = nullptr;
  OpenBucket* fullest = nullptr;
  std::size_t open = 0;
  for (OpenBucket& bucket : buckets) {
    if (!bucket.open || bucket.type != type) continue;
    open += 1;
    if (fullest == nullptr || bucket.filled > fullest->filled) fullest = &bucket;
    const bool fits = bucket.filled + padded <= most;
    if (fits && (best == nullptr || bucket.filled > best->filled)) best = &bucket;
  }
  if (best != nullptr) return *best;
  // One that will be closed at once takes no place among the open ones.
  if (open == max_open_buckets && padded < enough) fullest->open = false;
  return buckets.emplace_back(OpenBucket{type, std::nullopt, true});
}

}  // namespace

std::size_t locations_offset(const BucketLayout& layout) {
  return align_up(layout.bytes);
}

std::size_t memory_bytes(const BucketLayout& layout) {
  return locations_offset(layout) + layout.apart * sizeof(Location);
}

std::vector<BucketLayout> assign_buckets(std::span<const GradientSize> gradients,
                                         std::size_t bucket_bytes, std::size_t slices,
                                         std::size_t least_apart) {
  const std::size_t most = bucket_bytes + bucket_bytes / 4;
  const std::size_t enough = bucket_bytes - bucket_bytes / 4;
  std::vector<OpenBucket> buckets;
  for (std::size_t index = gradients.size(); index-- > 0;) {
    const GradientSize& size = gradients[index];
    const std::size_t padded = align_up(size.bytes / size_of(size.type) * size_of(size.wire_type));
    OpenBucket& bucket = size.group ? of_group(buckets, size.wire_type, *size.group)
                                    : best_fit(buckets, size.wire_type, padded, most, enough);
    const bool converted = size.type != size.wire_type;
    (!converted && size.bytes >= least_apart ? bucket.apart : bucket.joint)
        .push_back({index, padded, size.type, converted ? bucket.gradient_bytes : 0});
    if (converted) bucket.gradient_bytes += align_up(size.bytes);
    bucket.last = index;
    bucket.filled += padded;
    bucket.open = !bucket.group && bucket.filled < enough;
  }
  std::ranges::stable_sort(buckets, std::greater(), &OpenBucket::last);
  std::vector<BucketLayout> layouts;
  for (const OpenBucket& bucket : buckets) layouts.push_back(layout_of(bucket, slices));
  return layouts;
}

bool hold_the_same(std::span<const BucketLayout> a, std::span<const BucketLayout> b) {
  const auto gradients = [](const BucketLayout& layout) {
    std::set<std::size_t> indices;
    for (const GradientPlace& place : layout.places) indices.insert(place.gradient);
    return indices;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const BucketLayout& one, const BucketLayout& other) {
                      return one.type == other.type && gradients(one) == gradients(other);
                    });
}

std::vector<std::optional<std::size_t>> equal_groups(std::span<const GradientSize> gradients,
                                                     std::size_t count) {
  std::size_t all = 0;
  for (const GradientSize& gradient : gradients) all += gradient.bytes;
  std::vector<std::optional<std::size_t>> groups;
  std::size_t before = 0;
  for (const GradientSize& gradient : gradients) {
    // By its middle: no group takes more than its part and half a gradient at either end.
    const double middle = static_cast<double>(before) + 0.5 * static_cast<double>(gradient.bytes);
    const double part = all == 0 ? 0.0 : middle / static_cast<double>(all);
    groups.emplace_back(
        std::min(static_cast<std::size_t>(part * static_cast<double>(count)), count - 1));
    before += gradient.bytes;
  }
  return groups;
}

std::int64_t slice_elements(const BucketLayout& layout, int slices) {
  return static_cast<std::int64_t>(layout.presence_offset / size_of(layout.type)) / slices;
}

std::vector<ShardPiece> pieces_of_slice(const BucketLayout& layout,
                                        std::span<const std::int64_t> counts, int slice,
                                        int slices) {
  const std::int64_t length = slice_elements(layout, slices);
  const std::int64_t first = length * slice;
  std::vector<ShardPiece> pieces;
  for (std::size_t place = 0; place < layout.places.size(); ++place) {
    const auto& [gradient, offset, type, gradient_offset] = layout.places[place];
    const auto start = static_cast<std::int64_t>(offset / size_of(layout.type));
    const std::int64_t from = std::max(start, first);
    const std::int64_t to = std::min(start + counts[gradient], first + length);
    if (from < to) pieces.push_back({gradient, place, from - start, to - from, from - first});
  }
  return pieces;
}

}  // namespace hora::internal
