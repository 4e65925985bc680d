#include "ops/hierarchy/exchange_memory.h"

#include <gtest/gtest.h>

#include "tests/support/threads/heap_memory.h"

namespace hora::internal {
namespace {

TEST(GrowingBlock, IsKeptWhileItIsLongEnough) {
  test::HeapNode node(1);
  test::HeapMemory memory(node, 0);
  {
    GrowingBlock block(memory);
    EXPECT_EQ(block.reserve(0), nullptr);
    EXPECT_EQ(node.blocks_in_use(), 0u);
    for (const std::size_t bytes : {1, 100, 5000, 3000000}) {
      std::byte* const data = block.reserve(bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
      EXPECT_EQ(block.reserve(bytes / 2), data);
      EXPECT_EQ(memory.address(0, block.location(), bytes), data);
      EXPECT_EQ(node.blocks_in_use(), 1u) << "the shorter one is released";
    }
  }
  EXPECT_EQ(node.blocks_in_use(), 0u);
}

TEST(ExchangeMemory, NeighbouringRoundsHaveMemoryOfTheirOwn) {
  test::HeapNode node(1);
  test::HeapMemory memory(node, 0);
  {
    ExchangeMemory exchange(memory);
    std::byte* const first = exchange.staging(6).reserve(64);
    EXPECT_NE(exchange.staging(7).reserve(64), first);
    EXPECT_NE(exchange.scratch(6).reserve(64), first);
    EXPECT_EQ(exchange.staging(8).reserve(64), first);
    EXPECT_EQ(exchange.at(0, exchange.staging(6).location(), 64), first);
    EXPECT_EQ(node.blocks_in_use(), 3u);
  }
  EXPECT_EQ(node.blocks_in_use(), 0u);
}

}  // namespace
}  // namespace hora::internal
