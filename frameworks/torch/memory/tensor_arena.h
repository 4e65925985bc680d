/// LibTorch's CPU tensors in memory that the ranks of the node share. Knows no LibTorch.
#pragma once

#include <hora/context.h>

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ops/shm/shared_memory.h"

namespace hora::internal {

/// From now on until the context's shutdown(), where the settings want it: every CPU tensor of 64
/// KiB or more that LibTorch allocates, in any thread, lies in an arena, as long as that has room.
/// Others, and those of a forked child, are allocated as before. Tensors may outlive the context.
/// Does nothing the second time. Where the arena cannot be had, or the program has an allocator of
/// its own with a higher priority, tensors are copied: a warning says so where the setting is `on`.
/// Thread rule: no other thread allocates tensors during the first call of the process.
void start_tensor_arena(const Context& context);

/// Whether the byte at `data` lies in the arena that is open: the node's ranks reach it. Thread
/// rule: any thread.
bool in_tensor_arena(const void* data);

/// Whether start_tensor_arena() has one in mind: the same on all ranks, whether or not it could be
/// had.
bool wants_tensor_arena(const Context& context);

/// The length of the blocks that serve `bytes` bytes: eight classes from one power of two to the
/// next, so that at most an eighth is unused and sizes that are nearly equal share blocks. A
/// multiple of 64.
std::size_t arena_class(std::size_t bytes);

/// Which bytes of an arena are in use, and which block is used again; never touches the memory. A
/// step of training frees and wants the same sizes as the step before: a released block is kept as
/// it is, for the next of its class: the one released last, which is in the cache. Only where a
/// class has none are kept blocks joined with their neighbours and cut anew. Thread rule: one
/// thread at a time.
class ArenaBlocks {
 public:
  using Block = BlockAllocator::SegmentBlock;

  /// Adds a segment, the next one in number.
  void add_segment(std::size_t bytes) { blocks_.add_segment(0, bytes); }
  /// Returns a block at least `bytes` long, at a multiple of 64 of its segment; nothing where no
  /// free one is long enough.
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
