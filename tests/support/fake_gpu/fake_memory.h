/// The allocations of a fake GPU.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace hora::internal::test {

enum class MemoryKind { pinned, device, ordered, nccl };

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
  int blocks(MemoryKind kind) const;

 private:
  struct Block {
    MemoryKind kind;
    std::size_t bytes;
  };
  const Block* find(const void* data, std::size_t bytes) const;

  mutable std::mutex mutex_;
  std::map<const std::byte*, Block, std::greater<>> blocks_;
};

}  // namespace hora::internal::test
