#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "ops/shm/window.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(BlockAllocator, GivesNothingWithoutASegment) {
  BlockAllocator allocator;
  EXPECT_FALSE(allocator.allocate(1).has_value());
}

TEST(BlockAllocator, ZeroBytesAreABlockOfTheirOwn) {
  BlockAllocator allocator;
  allocator.add_segment(0, 128);
  const auto first = allocator.allocate(0);
  const auto second = allocator.allocate(0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  EXPECT_FALSE(allocator.allocate(0).has_value());
}

TEST(BlockAllocator, TakesTheSmallestBlockThatFits) {
  BlockAllocator allocator;
  allocator.add_segment(4096, 1024);
  allocator.add_segment(0, 256);
  EXPECT_EQ(allocator.allocate(200), (BlockAllocator::SegmentBlock{1, 0}));
  EXPECT_EQ(allocator.allocate(200), (BlockAllocator::SegmentBlock{0, 4096}));
}

TEST(BlockAllocator, ReleasingWhatIsNotInUseChangesNothing) {
  BlockAllocator allocator;
  allocator.add_segment(0, 128);
  const auto block = allocator.allocate(128);
  ASSERT_TRUE(block.has_value());
  allocator.release({0, 64});
  allocator.release({3, 0});
  EXPECT_EQ(allocator.blocks_in_use(), 1u);
  EXPECT_FALSE(allocator.allocate(1).has_value());
  allocator.release(*block);
  allocator.release(*block);
  EXPECT_TRUE(allocator.allocate(128).has_value());
  EXPECT_FALSE(allocator.allocate(1).has_value()) << "released twice, but there once";
}

TEST(BlockAllocator, SegmentsSideBySideDoNotMerge) {
  BlockAllocator allocator;
  allocator.add_segment(0, 64);
  allocator.add_segment(64, 64);
  const auto a = allocator.allocate(64);
  const auto b = allocator.allocate(64);
  allocator.release(*a);
  allocator.release(*b);
  EXPECT_FALSE(allocator.allocate(128).has_value());
}

class Model {
 public:
  /// False where [offset, offset + bytes) touches a block.
  bool take(const BlockAllocator::SegmentBlock& block, std::uint64_t bytes) {
    auto& blocks = segments_[block.segment];
    const auto after = blocks.lower_bound(block.offset);
    if (after != blocks.end() && block.offset + bytes > after->first) return false;
    if (after != blocks.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second > block.offset) return false;
    }
    blocks.emplace(block.offset, bytes);
    return true;
  }
  void give_back(const BlockAllocator::SegmentBlock& block) {
    segments_[block.segment].erase(block.offset);
  }

 private:
  std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> segments_;
};

TEST(BlockAllocator, RandomUseAgainstAModel) {
  auto random = test::generator();
  for (int run = 0; run < 20; ++run) {
    BlockAllocator allocator;
    constexpr std::uint64_t kBegin = 8192;
    constexpr std::uint64_t kBytes = 64 * 500;
    const auto segments = static_cast<std::uint32_t>(1 + random() % 3);
    for (std::uint32_t s = 0; s < segments; ++s) allocator.add_segment(kBegin, kBytes);
    Model model;
    std::vector<BlockAllocator::SegmentBlock> open;
    int refused = 0;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 100 < 55) {
        const std::size_t bytes = random() % 3 == 0 ? random() % 5000 : random() % 200;
        const auto block = allocator.allocate(bytes);
        if (!block) {
          ++refused;
          continue;
        }
        ASSERT_EQ(block->offset % 64, 0u);
        ASSERT_LT(block->segment, segments);
        ASSERT_GE(block->offset, kBegin);
        ASSERT_LE(block->offset + bytes, kBegin + kBytes);
        ASSERT_TRUE(model.take(*block, std::max<std::size_t>(bytes, 1))) << "blocks overlap";
        open.push_back(*block);
      } else if (!open.empty()) {
        std::swap(open[random() % open.size()], open.back());
        model.give_back(open.back());
        allocator.release(open.back());
        open.pop_back();
      }
      ASSERT_EQ(allocator.blocks_in_use(), open.size());
    }
    EXPECT_GT(refused, 0) << "the run never filled the segments";
    for (const auto& block : open) allocator.release(block);
    for (std::uint32_t s = 0; s < segments; ++s) {
      EXPECT_TRUE(allocator.allocate(kBytes).has_value()) << "the free blocks are whole again";
    }
    EXPECT_FALSE(allocator.allocate(1).has_value());
  }
}

}  // namespace
}  // namespace hora::internal
