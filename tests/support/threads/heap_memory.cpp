#include "tests/support/threads/heap_memory.h"

#include <hora/error.h>

#include <algorithm>

#include "core/base/checked.h"
#include "core/plan/plan.h"

namespace hora::internal::test {

NodeMemory::MemoryBlock HeapNode::allocate(int local_rank, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  RankMemory& rank = ranks_[static_cast<std::size_t>(local_rank)];
  auto block = rank.allocator.allocate(bytes);
  if (!block) {
    const std::size_t length = std::max(align_up(bytes), std::size_t{1} << 20);
    Segment segment{std::make_unique<std::byte[]>(length + kAlignment), nullptr, length};
    const auto address = reinterpret_cast<std::uintptr_t>(segment.memory.get());
    segment.begin = segment.memory.get() + (align_up(address) - address);
    rank.segments.push_back(std::move(segment));
    rank.allocator.add_segment(0, length);
    block = rank.allocator.allocate(bytes);
  }
  return {rank.segments[block->segment].begin + block->offset, {block->segment, 0, block->offset}};
}

void HeapNode::release(int local_rank, std::byte* data) {
  const auto location = find(local_rank, data, 1);
  if (!location) return;
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(local_rank)].allocator.release(
      {location->window, location->offset});
}

std::optional<Location> HeapNode::find(int local_rank, const std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto& segments = ranks_[static_cast<std::size_t>(local_rank)].segments;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (data >= segments[s].begin && data + bytes <= segments[s].begin + segments[s].bytes) {
      return Location{static_cast<std::uint32_t>(s), 0,
                      static_cast<std::uint64_t>(data - segments[s].begin)};
    }
  }
  return std::nullopt;
}

std::byte* HeapNode::address(int local_rank, Location location, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Segment& segment =
      ranks_.at(static_cast<std::size_t>(local_rank)).segments.at(location.window);
  if (!(Checked(location.offset) + bytes).at_most(segment.bytes)) {
    throw Error(ErrorCode::transport, "beyond the end of a segment");
  }
  return segment.begin + location.offset;
}

std::size_t HeapNode::blocks_in_use() {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const RankMemory& rank : ranks_) count += rank.allocator.blocks_in_use();
  return count;
}

}  // namespace hora::internal::test
