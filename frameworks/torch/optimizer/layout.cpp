#include "frameworks/torch/optimizer/layout.h"

#include <algorithm>
#include <cstdint>
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
  std::vector<GradientPlace> apart = {};  // each place's offset is its padded length until take()
  std::vector<GradientPlace> joint = {};
  std::size_t last = 0;            // gradient that completes it
  std::size_t filled = 0;          // bytes, padded
  std::size_t gradient_bytes = 0;  // of gradient memory
};

class Assignment {
 public:
  Assignment(std::size_t bucket_bytes, std::size_t slices, std::size_t least_apart)
      : most_(bucket_bytes + bucket_bytes / 4),
        enough_(bucket_bytes - bucket_bytes / 4),
        slices_(slices),
        least_apart_(least_apart) {}

  void add(std::size_t gradient, GradientSize size) {
    const std::size_t padded = align_up(size.bytes / size_of(size.type) * size_of(size.wire_type));
    OpenBucket& bucket =
        size.group ? of_group(size.wire_type, *size.group) : best_fit(size.wire_type, padded);
    const bool converted = size.type != size.wire_type;
    (!converted && size.bytes >= least_apart_ ? bucket.apart : bucket.joint)
        .push_back({gradient, padded, size.type, converted ? bucket.gradient_bytes : 0});
    if (converted) bucket.gradient_bytes += align_up(size.bytes);
    bucket.last = gradient;
    bucket.filled += padded;
    bucket.open = !bucket.group && bucket.filled < enough_;
  }

  std::vector<BucketLayout> take() {
    std::stable_sort(buckets_.begin(), buckets_.end(),
                     [](const OpenBucket& a, const OpenBucket& b) { return a.last > b.last; });
    std::vector<BucketLayout> layouts;
    for (const OpenBucket& bucket : buckets_) {
      BucketLayout& layout = layouts.emplace_back();
      layout.type = bucket.type;
      layout.gradient_bytes = bucket.gradient_bytes;
      std::size_t offset = 0;
      for (const auto* places : {&bucket.apart, &bucket.joint}) {
        layout.joint_offset = offset;
        for (GradientPlace place : *places) {
          offset += std::exchange(place.offset, offset);
          layout.places.push_back(place);
        }
      }
      layout.apart = bucket.apart.size();
      const std::size_t element = size_of(bucket.type);
      layout.presence_offset = align_up((bucket.filled + slices_ - 1) / slices_) * slices_;
      layout.flag_offset = layout.presence_offset + layout.places.size() * element;
      layout.step_offset = layout.flag_offset + element;
      layout.bytes = layout.step_offset + step_lanes * element;
    }
    return layouts;
  }

 private:
  OpenBucket& of_group(DataType type, std::size_t group) {
    const auto found = std::find_if(
        buckets_.begin(), buckets_.end(),
        [&](const OpenBucket& bucket) { return bucket.group == group && bucket.type == type; });
    if (found != buckets_.end()) return *found;
    return buckets_.emplace_back(OpenBucket{type, group, false});
  }

  OpenBucket& best_fit(DataType type, std::size_t padded) {
    OpenBucket* best = nullptr;
    OpenBucket* fullest = nullptr;
    std::size_t open = 0;
    for (OpenBucket& bucket : buckets_) {
      if (!bucket.open || bucket.type != type) continue;
      open += 1;
      if (fullest == nullptr || bucket.filled > fullest->filled) fullest = &bucket;
      const bool fits = bucket.filled + padded <= most_;
      if (fits && (best == nullptr || bucket.filled > best->filled)) best = &bucket;
    }
    if (best != nullptr) return *best;
    // One that will be closed at once takes no place among the open ones.
    if (open == max_open_buckets && padded < enough_) fullest->open = false;
    return buckets_.emplace_back(OpenBucket{type, std::nullopt, true});
  }

  std::size_t most_;
  std::size_t enough_;
  std::size_t slices_;
  std::size_t least_apart_;
  std::vector<OpenBucket> buckets_;
};

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
  Assignment assignment(bucket_bytes, slices, least_apart);
  for (std::size_t index = gradients.size(); index-- > 0;) {
    assignment.add(index, gradients[index]);
  }
  return assignment.take();
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
