#include <algorithm>
#include <iterator>

#include "core/base/checked.h"
#include "ops/shm/window.h"

namespace hora::internal {

void BlockAllocator::insert_free(Place place, std::uint64_t bytes) {
  free_.emplace(place, bytes);
  by_size_.emplace(bytes, place);
}

void BlockAllocator::erase_free(std::map<Place, std::uint64_t>::iterator block) {
  by_size_.erase({block->second, block->first});
  free_.erase(block);
}

void BlockAllocator::add_segment(std::uint64_t begin, std::uint64_t bytes) {
  insert_free({segments_++, begin}, bytes);
}

std::optional<BlockAllocator::SegmentBlock> BlockAllocator::allocate(std::size_t bytes) {
  const std::uint64_t wanted = align_up(std::max<std::size_t>(bytes, 1));
  const auto fit = by_size_.lower_bound({wanted, Place{0, 0}});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [length, place] = *fit;
  erase_free(free_.find(place));
  if (length > wanted) insert_free({place.first, place.second + wanted}, length - wanted);
  used_.emplace(place, wanted);
  return SegmentBlock{place.first, place.second};
}

void BlockAllocator::release(SegmentBlock block) {
  const auto used = used_.find({block.segment, block.offset});
  if (used == used_.end()) return;
  Place place = used->first;
  std::uint64_t length = used->second;
  used_.erase(used);
  const auto after = free_.lower_bound(place);
  if (after != free_.end() && after->first == Place{place.first, place.second + length}) {
    length += after->second;
    erase_free(after);
  }
  const auto next = free_.lower_bound(place);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first.first == place.first &&
        before->first.second + before->second == place.second) {
      place = before->first;
      length += before->second;
      erase_free(before);
    }
  }
  insert_free(place, length);
}

}  // namespace hora::internal
