/// Memory for tensors that all ranks of the node have mapped.
#pragma once

#include <hora/buffer.h>
#include <hora/context.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/sync.h"
#include "frameworks/torch/memory/arena_blocks.h"

namespace hora::internal {

/// Grows by segments, each a hora::Buffer, up to its limit or as far as the machine has memory, and
/// keeps them: memory that was used once causes no page faults when it is used again. Its blocks
/// may outlive the context, and it must outlive them. Thread rule: any thread.
class TensorArena {
 public:
  /// The smallest tensors whose copy costs more than reaching them one by one.
  static constexpr std::size_t kLeastBytes = std::size_t{64} << 10;

  /// `limit`: bytes of all segments. Throws what hora::Buffer throws where the first segment, which
  /// is at most as long, cannot be had; the context goes on.
  TensorArena(const Context& context, std::size_t limit);
  TensorArena(const TensorArena&) = delete;
  TensorArena& operator=(const TensorArena&) = delete;

  /// 64-byte aligned, unspecified; null where there is no room, and where a collective has failed:
  /// peers may still write to what was freed.
  std::byte* allocate(std::size_t bytes);
  /// False where `data` is not of this arena. While an exception unwinds the stack before close(),
  /// the block is not used again, as hora::Buffer's.
  bool release(void* data) noexcept;
  /// Whether the byte at `data` lies in one of the segments.
  bool holds(const void* data) const noexcept;
  /// Whether `data` may be of this arena; takes no lock.
  bool spans(const void* data) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return address >= lowest_ && address < highest_;
  }
  /// Nothing is allocated from now on; the memory is given up with the last block. While the
  /// context's shutdown() runs.
  void close() noexcept;

 private:
  struct Use {
    ArenaBlocks::Block block;
    std::size_t bytes;
  };

  bool grow(std::size_t bytes) HORA_REQUIRES(mutex_);
  bool try_to_add(std::size_t bytes, std::string& why) HORA_REQUIRES(mutex_);
  void add_segment(const Context& context, std::size_t bytes) HORA_REQUIRES(mutex_);
  /// The segments, if they are to be given up: by the caller, who has released the lock.
  std::vector<Buffer> unused_segments() HORA_REQUIRES(mutex_);

  const std::size_t limit_;
  mutable Mutex mutex_;
  std::optional<Context> context_ HORA_GUARDED_BY(mutex_);  ///< until it is closed
  bool full_ HORA_GUARDED_BY(mutex_) = false;               ///< it does not grow any more
  std::size_t bytes_ HORA_GUARDED_BY(mutex_) = 0;
  std::vector<Buffer> segments_ HORA_GUARDED_BY(mutex_);
  ArenaBlocks blocks_ HORA_GUARDED_BY(mutex_);
  std::unordered_map<const void*, Use> uses_ HORA_GUARDED_BY(mutex_);
  /// All segments lie between them, so that most other addresses need no lock.
  std::atomic<std::uintptr_t> lowest_{UINTPTR_MAX};
  std::atomic<std::uintptr_t> highest_{0};
};

}  // namespace hora::internal
