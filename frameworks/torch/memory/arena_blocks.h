/// Which bytes of an arena are in use, and which block is used again. Pure; knows no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ops/shm/shared_memory.h"

namespace hora::internal {

/// The length of the blocks that serve `bytes` bytes: eight classes from one power of two to the
/// next, so that at most an eighth is unused and sizes that are nearly equal share blocks. A
/// multiple of 64.
std::size_t arena_class(std::size_t bytes);

/// A step of training frees and wants the same sizes as the step before. So a released block is
/// kept as it is, for the next of its class: the one released last, which is in the cache. Only
/// where a class has none are kept blocks joined with their neighbours and cut anew. It never
/// touches the memory. Thread rule: one thread at a time.
class ArenaBlocks {
 public:
  using Block = BlockAllocator::SegmentBlock;

  /// A new segment, the next one in number.
  void add_segment(std::size_t bytes);
  /// At least `bytes` long; begins at a multiple of 64 of its segment. Nothing where no free block
  /// is long enough.
  std::optional<Block> allocate(std::size_t bytes);
  /// `block` as allocate() gave it, for `bytes`.
  void release(Block block, std::size_t bytes);
  std::size_t blocks_in_use() const { return in_use_; }

 private:
  void join_kept();

  BlockAllocator blocks_;
  std::unordered_map<std::size_t, std::vector<Block>> kept_;  ///< by class
  std::size_t in_use_ = 0;
};

}  // namespace hora::internal
