/// The allocations of a fake GPU.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hora::internal::test {

enum class MemoryKind { pinned, device, ordered, nccl };

/// Memory that work, from the call on until it is done, may touch.
using MemoryUse = std::vector<std::shared_ptr<void>>;
using MemoryRange = std::pair<const void*, std::size_t>;

/// Thread rule: any thread.
class FakeMemory {
 public:
  FakeMemory() = default;
  ~FakeMemory();
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  /// Aligned to 256 bytes, as CUDA's, and filled with a pattern, for CUDA does not clear either.
  void* allocate(MemoryKind kind, std::size_t bytes);
  /// False where `data` is not the beginning of such a block.
  bool release(MemoryKind kind, void* data);

  /// Whether all of [data, data + bytes) lies in one block; device memory includes NCCL's.
  bool on_device(const void* data, std::size_t bytes) const;
  bool pinned(const void* data, std::size_t bytes) const;
  /// Whether a block of this kind begins there, and has as many bytes at least.
  bool is_block(MemoryKind kind, const void* data, std::size_t bytes) const;
  int blocks(MemoryKind kind) const;
  /// Use of the blocks that the ranges lie in.
  MemoryUse use(const std::vector<MemoryRange>& ranges) const;
  /// Some work may still touch the block that begins there.
  bool in_use(const void* data) const;

 private:
  struct Block {
    MemoryKind kind;
    std::size_t bytes;
    std::shared_ptr<void> users = std::make_shared<int>();  ///< held by each, and here
  };
  const Block* find(const void* data, std::size_t bytes) const;

  mutable std::mutex mutex_;
  std::map<const std::byte*, Block, std::greater<>> blocks_;
};

}  // namespace hora::internal::test
