/// NodeMemory on this process's heap: all ranks see each other's memory at the same addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/shm/shared_memory.h"

namespace hora::internal::test {

/// The memory of one node's ranks. Thread rule: any thread.
class HeapNode {
 public:
  explicit HeapNode(int local_size) : ranks_(static_cast<std::size_t>(local_size)) {}

  NodeMemory::MemoryBlock allocate(int local_rank, std::size_t bytes);
  void release(int local_rank, std::byte* data);
  std::optional<Location> find(int local_rank, const std::byte* data, std::size_t bytes);
  std::byte* address(int local_rank, Location location, std::size_t bytes);
  /// Blocks that are not released.
  std::size_t blocks_in_use();

 private:
  struct Segment {
    std::unique_ptr<std::byte[]> memory;
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
  };
  struct RankMemory {
    std::vector<Segment> segments;
    BlockAllocator allocator;
  };
  std::mutex mutex_;
  std::vector<RankMemory> ranks_;
};

class HeapMemory final : public NodeMemory {
 public:
  HeapMemory(HeapNode& node, int local_rank) : node_(node), local_rank_(local_rank) {}
  MemoryBlock allocate(std::size_t bytes) override { return node_.allocate(local_rank_, bytes); }
  void release(std::byte* data) noexcept override { node_.release(local_rank_, data); }
  std::optional<Location> find(const std::byte* data, std::size_t bytes) const override {
    return node_.find(local_rank_, data, bytes);
  }
  std::byte* address(int local_rank, Location location, std::size_t bytes) override {
    return node_.address(local_rank, location, bytes);
  }
  void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(out, in, bytes);
    bytes_past_caches_ += bytes;
  }
  std::size_t bytes_past_caches() const { return bytes_past_caches_; }

 private:
  HeapNode& node_;
  int local_rank_;
  std::atomic<std::size_t> bytes_past_caches_{0};
};

}  // namespace hora::internal::test
