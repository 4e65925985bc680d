#include "frameworks/torch/optimizer/bucket_layout.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/checked.h"
#include "frameworks/torch/optimizer/step_counters.h"

namespace hora::internal {
namespace {

constexpr std::size_t max_open_buckets = 2;  // of one type

struct OpenBucket {
  DataType type;
  std::optional<std::size_t> group;
  std::vector<GradientPlace> places;  // each one's offset is its padded length until take()
  std::vector<bool> apart;            // by place
  std::size_t filled = 0;             // bytes, padded
  std::size_t gradient_bytes = 0;     // of gradient memory
  bool open = true;
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
    bucket.places.push_back({gradient, padded, size.type, converted ? bucket.gradient_bytes : 0});
    bucket.apart.push_back(!converted && size.bytes >= least_apart_);
    if (converted) bucket.gradient_bytes += align_up(size.bytes);
    bucket.filled += padded;
    bucket.open = !bucket.group && bucket.filled < enough_;
  }

  std::vector<BucketLayout> take() {
    // Gradients come in descending order of their index, so a bucket's last place says when the
    // bucket is complete.
    std::stable_sort(buckets_.begin(), buckets_.end(),
                     [](const OpenBucket& a, const OpenBucket& b) {
                       return a.places.back().gradient > b.places.back().gradient;
                     });
    std::vector<BucketLayout> layouts;
    for (OpenBucket& bucket : buckets_) {
      const auto [places, apart, joint_offset] = laid_out(bucket);
      const std::size_t element = size_of(bucket.type);
      const std::size_t slice = align_up((bucket.filled + slices_ - 1) / slices_);
      const std::size_t presence = slice * slices_;
      const std::size_t flag = presence + places.size() * element;
      const std::size_t step = flag + element;
      layouts.push_back({bucket.type, places, presence, flag, step, step + step_lanes * element,
                         bucket.gradient_bytes, apart, joint_offset});
    }
    return layouts;
  }

 private:
  struct LaidOut {
    std::vector<GradientPlace> places;
    std::size_t apart = 0;
    std::size_t joint_offset = 0;
  };
  static LaidOut laid_out(const OpenBucket& bucket) {
    LaidOut result;
    std::size_t offset = 0;
    const auto take_those = [&](bool apart) {
      for (std::size_t i = 0; i < bucket.places.size(); ++i) {
        if (bucket.apart[i] != apart) continue;
        GradientPlace place = bucket.places[i];
        offset += std::exchange(place.offset, offset);
        result.places.push_back(place);
      }
    };
    take_those(true);
    result.apart = result.places.size();
    result.joint_offset = offset;
    take_those(false);
    return result;
  }

  OpenBucket& of_group(DataType type, std::size_t group) {
    const auto found = std::find_if(
        buckets_.begin(), buckets_.end(),
        [&](const OpenBucket& bucket) { return bucket.group == group && bucket.type == type; });
    if (found != buckets_.end()) return *found;
    return buckets_.emplace_back(OpenBucket{type, group, {}, {}, 0, 0, false});
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
    return buckets_.emplace_back(OpenBucket{type, std::nullopt, {}, {}, 0, 0, true});
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
    std::vector<std::size_t> indices;
    for (const GradientPlace& place : layout.places) indices.push_back(place.gradient);
    std::sort(indices.begin(), indices.end());
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
  for (const GradientPlace& place : layout.places) {
    const auto start = static_cast<std::int64_t>(place.offset / size_of(layout.type));
    const std::int64_t from = std::max(start, first);
    const std::int64_t to = std::min(start + counts[place.gradient], first + length);
    if (from < to) pieces.push_back({place.gradient, from - start, to - from, from - first});
  }
  return pieces;
}

}  // namespace hora::internal
