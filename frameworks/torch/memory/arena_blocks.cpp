#include "frameworks/torch/memory/arena_blocks.h"

#include <algorithm>
#include <bit>

#include "core/base/checked.h"

namespace hora::internal {

std::size_t arena_class(std::size_t bytes) {
  const std::size_t step = std::bit_floor(std::max<std::size_t>(bytes, 1)) / 8;
  return align_up(bytes, std::max<std::size_t>(step, kAlignment));
}

void ArenaBlocks::add_segment(std::size_t bytes) {
  blocks_.add_segment(0, bytes);
}

std::optional<ArenaBlocks::Block> ArenaBlocks::allocate(std::size_t bytes) {
  const std::size_t length = arena_class(bytes);
  std::optional<Block> block;
  auto& kept = kept_[length];
  if (!kept.empty()) {
    block = kept.back();
    kept.pop_back();
  } else {
    block = blocks_.allocate(length);
    if (!block) {
      join_kept();
      block = blocks_.allocate(length);
    }
  }
  if (block) in_use_ += 1;
  return block;
}

void ArenaBlocks::release(Block block, std::size_t bytes) {
  kept_[arena_class(bytes)].push_back(block);
  in_use_ -= 1;
}

void ArenaBlocks::join_kept() {
  for (auto& [length, kept] : kept_) {
    for (const Block& block : kept) blocks_.release(block);
    kept.clear();
  }
}

}  // namespace hora::internal
