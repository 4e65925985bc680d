/// Views of one control block for programs of the explorer (tests/support/model).
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "core/control_block/node_control_block.h"

namespace hora::internal::test {

inline constexpr ControlBlockShape kShape{.local_size = 2,
                                          .id_capacity = 2,
                                          .single_node = true,
                                          .mailbox_bytes = 64,
                                          .control_bytes = 64};

/// At the same addresses in all executions.
struct Memory {
  static std::byte* fresh() {
    static Memory memory;
    std::memset(memory.bytes, 0, sizeof memory.bytes);
    return memory.bytes;
  }
  static constexpr std::size_t kBytes = std::size_t{1} << 18;
  alignas(64) std::byte bytes[kBytes];
};

/// Two ranks' views of one control block.
struct ControlBlocks {
  explicit ControlBlocks(const ControlBlockShape& shape = kShape) : of_rank(views(shape)) {}
  NodeControlBlock& operator[](int rank) { return of_rank[static_cast<std::size_t>(rank)]; }
  std::vector<NodeControlBlock> of_rank;

 private:
  static std::vector<NodeControlBlock> views(const ControlBlockShape& shape) {
    EXPECT_LE(NodeControlBlock::bytes(shape), Memory::kBytes);
    std::byte* const memory = Memory::fresh();
    std::vector<NodeControlBlock> views;
    for (int rank = 0; rank < shape.local_size; ++rank) views.emplace_back(memory, shape, rank);
    return views;
  }
};

}  // namespace hora::internal::test
