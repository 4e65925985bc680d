#include "frameworks/torch/memory/arena_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

constexpr std::size_t kKiB = 1 << 10;

TEST(ArenaClass, IsAtMostAnEighthLongerAndAMultipleOf64) {
  EXPECT_EQ(arena_class(64 * kKiB), 64 * kKiB);
  EXPECT_EQ(arena_class(64 * kKiB + 1), 72 * kKiB);
  EXPECT_EQ(arena_class(72 * kKiB), 72 * kKiB);
  EXPECT_EQ(arena_class(1), 64u);
  std::mt19937_64 random = test::generator();
  for (int i = 0; i < 1000; ++i) {
    const std::size_t bytes = 512 + (random() >> (random() % 40 + 24));
    const std::size_t length = arena_class(bytes);
    EXPECT_GE(length, bytes);
    EXPECT_LE(length - bytes, bytes / 8) << bytes;
    EXPECT_EQ(length % 64, 0u);
    EXPECT_EQ(arena_class(length), length) << "a class is its own";
  }
}

TEST(ArenaBlocks, TheBlockReleasedLastServesTheNextOfItsClass) {
  ArenaBlocks blocks;
  EXPECT_FALSE(blocks.allocate(100));
  blocks.add_segment(1000 * kKiB);
  const auto a = blocks.allocate(100 * kKiB);
  const auto b = blocks.allocate(100 * kKiB);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(blocks.blocks_in_use(), 2u);
  blocks.release(*a, 100 * kKiB);
  blocks.release(*b, 100 * kKiB);
  EXPECT_EQ(blocks.blocks_in_use(), 0u);
  EXPECT_EQ(blocks.allocate(99 * kKiB), b) << "99 KiB are of the same class";
  EXPECT_EQ(blocks.allocate(100 * kKiB), a);
}

TEST(ArenaBlocks, KeptBlocksAreJoinedWhereALongerOneIsWanted) {
  ArenaBlocks blocks;
  blocks.add_segment(256 * kKiB);
  std::vector<ArenaBlocks::Block> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(blocks.allocate(64 * kKiB).value());
  EXPECT_FALSE(blocks.allocate(64));
  for (const auto& block : taken) blocks.release(block, 64 * kKiB);
  const auto whole = blocks.allocate(256 * kKiB);
  ASSERT_TRUE(whole);
  EXPECT_EQ(*whole, (ArenaBlocks::Block{0, 0}));
}

TEST(ArenaBlocks, RandomBlocksNeverOverlap) {
  std::mt19937_64 random = test::generator();
  ArenaBlocks blocks;
  blocks.add_segment(4096 * kKiB);
  blocks.add_segment(1024 * kKiB);
  struct Used {
    ArenaBlocks::Block block;
    std::size_t bytes;
  };
  std::vector<Used> used;
  const auto overlap = [](const Used& a, const Used& b) {
    return a.block.segment == b.block.segment && a.block.offset < b.block.offset + b.bytes &&
           b.block.offset < a.block.offset + a.bytes;
  };
  std::size_t refused = 0;
  for (int round = 0; round < 5000; ++round) {
    if (used.empty() || random() % 5 < 3) {
      const std::size_t bytes = 1 + random() % (200 * kKiB);
      const auto block = blocks.allocate(bytes);
      if (!block) {
        refused += 1;
        continue;
      }
      const Used now{*block, bytes};
      EXPECT_EQ(block->offset % 64, 0u);
      EXPECT_LE(block->offset + bytes, (block->segment == 0 ? 4096u : 1024u) * kKiB);
      for (const Used& other : used) ASSERT_FALSE(overlap(now, other));
      used.push_back(now);
    } else {
      const std::size_t which = random() % used.size();
      blocks.release(used[which].block, used[which].bytes);
      used.erase(used.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ASSERT_EQ(blocks.blocks_in_use(), used.size());
  }
  EXPECT_GT(refused, 0u) << "it was full now and then";
}

}  // namespace
}  // namespace hora::internal
