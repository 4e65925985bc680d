/// The node's memory as the ranks of a process set number it.
#pragma once

#include <utility>
#include <vector>

#include "core/engine/data_path.h"

namespace hora {

/// `memory` outlives it. Thread rule: as NodeMemory.
class MemberMemory final : public NodeMemory {
 public:
  /// `members[i]`: local rank in the world of the set's local rank i.
  MemberMemory(NodeMemory& memory, std::vector<int> members)
      : memory_(memory), members_(std::move(members)) {}

  Block allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void release(std::byte* data) noexcept override { memory_.release(data); }
  std::optional<Location> find(const std::byte* data, std::size_t bytes) const override {
    return memory_.find(data, bytes);
  }
  std::byte* address(int local_rank, Location location, std::size_t bytes) override {
    return memory_.address(members_[static_cast<std::size_t>(local_rank)], location, bytes);
  }
  void publish(std::byte* block, const std::byte* data, std::size_t bytes) override {
    memory_.publish(block, data, bytes);
  }

 private:
  NodeMemory& memory_;
  std::vector<int> members_;
};

}  // namespace hora
