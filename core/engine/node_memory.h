/// The memory that a node's ranks share.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// Memory of this rank that its node's other ranks can read and write, and theirs as seen from
/// here. Thread rule: any thread.
class NodeMemory {
 public:
  struct MemoryBlock {
    std::byte* data = nullptr;
    Location location;
  };
  virtual ~NodeMemory() = default;
  /// 64-byte aligned. Throws Error(out_of_memory).
  virtual MemoryBlock allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  /// Where [data, data + bytes) lies in this rank's windows, if it does.
  virtual std::optional<Location> find(const std::byte* data, std::size_t bytes) const = 0;
  /// Where a peer keeps `bytes` bytes, mapped when first asked for. Throws Error(transport) where
  /// that is not inside one of its windows.
  virtual std::byte* address(int local_rank, Location location, std::size_t bytes) = 0;
  /// memcpy to where nothing is read soon, or by peers first: long ones leave the caches alone.
  virtual void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) = 0;
};

/// The node's memory as the ranks of a process set number it. `memory` outlives it. Thread rule: as
/// NodeMemory.
class MemberMemory final : public NodeMemory {
 public:
  /// `members[i]`: local rank in the world of the set's local rank i.
  MemberMemory(NodeMemory& memory, std::vector<int> members)
      : memory_(memory), members_(std::move(members)) {}

  MemoryBlock allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(std::byte* data) noexcept override { memory_.release(data); }
  std::optional<Location> find(const std::byte* data, std::size_t bytes) const override {
    return memory_.find(data, bytes);
  }
  std::byte* address(int local_rank, Location location, std::size_t bytes) override {
    return memory_.address(members_[static_cast<std::size_t>(local_rank)], location, bytes);
  }
  void copy_past_caches(std::byte* out, const std::byte* in, std::size_t bytes) override {
    memory_.copy_past_caches(out, in, bytes);
  }

 private:
  NodeMemory& memory_;
  std::vector<int> members_;
};

}  // namespace hora::internal
