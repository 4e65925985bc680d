#include "frameworks/torch/optimizer/shard_pieces.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/support/seed.h"

namespace hora {
namespace {

TEST(ShardPieces, CutWhereTheSliceEnds) {
  // 20 and 40 float32 elements, padded to 32 and 48: 80, and for 3 slices 96.
  const GradientSize sizes[] = {{DataType::float32, 80}, {DataType::float32, 160}};
  const auto layouts = assign_buckets(sizes, 1024, 3);
  ASSERT_EQ(layouts.size(), 1U);
  EXPECT_EQ(slice_elements(layouts[0], 3), 32);
  const std::int64_t counts[] = {20, 40};
  using Pieces = std::vector<ShardPiece>;
  // Gradient 1 comes first in the bucket.
  EXPECT_EQ(pieces_of_slice(layouts[0], counts, 0, 3), (Pieces{{1, 0, 32, 0}}));
  EXPECT_EQ(pieces_of_slice(layouts[0], counts, 1, 3), (Pieces{{1, 32, 8, 0}, {0, 0, 16, 16}}));
  EXPECT_EQ(pieces_of_slice(layouts[0], counts, 2, 3), (Pieces{{0, 16, 4, 0}}));
}

TEST(ShardPieces, HoldEachElementOnce) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 200; ++round) {
    const int slices = std::uniform_int_distribution(1, 9)(random);
    std::vector<GradientSize> sizes;
    std::vector<std::int64_t> counts;
    for (int i = std::uniform_int_distribution(1, 12)(random); i > 0; --i) {
      counts.push_back(std::uniform_int_distribution(0, 300)(random));
      const auto type = i % 3 == 0 ? DataType::float64 : DataType::float32;
      sizes.push_back({type, static_cast<std::size_t>(counts.back()) * size_of(type)});
    }
    std::vector<std::int64_t> found(counts.size(), 0);
    for (const auto& layout : assign_buckets(sizes, 2048, static_cast<std::size_t>(slices))) {
      EXPECT_EQ(layout.presence_offset % (64 * static_cast<std::size_t>(slices)), 0U);
      for (int slice = 0; slice < slices; ++slice) {
        for (const ShardPiece& piece : pieces_of_slice(layout, counts, slice, slices)) {
          EXPECT_GT(piece.count, 0);
          EXPECT_LE(piece.offset + piece.count, slice_elements(layout, slices));
          EXPECT_EQ(piece.begin, found[piece.gradient]) << "in order, without a gap";
          found[piece.gradient] += piece.count;
        }
      }
    }
    EXPECT_EQ(found, counts);
  }
}

TEST(Groups, ShareABucketWithNoOthers) {
  const GradientSize sizes[] = {{DataType::float32, 64, DataType::float32, 0},
                                {DataType::float32, 64},
                                {DataType::float64, 64, DataType::float64, 0},
                                {DataType::float32, 4096, DataType::float32, 0}};
  const auto layouts = assign_buckets(sizes, 256);
  ASSERT_EQ(layouts.size(), 3U);
  std::vector<std::vector<std::size_t>> members;
  for (const auto& layout : layouts) {
    auto& gradients = members.emplace_back();
    for (const auto& place : layout.places) gradients.push_back(place.gradient);
  }
  EXPECT_EQ(members, (std::vector<std::vector<std::size_t>>{{2}, {1}, {3, 0}}));
}

TEST(Groups, AreOfAboutEqualBytes) {
  std::vector<GradientSize> sizes(10, {DataType::float32, 40});
  const auto groups = equal_groups(sizes, 3);
  std::vector<int> members(3, 0);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    members[*groups[i]] += 1;
    if (i > 0) {
      EXPECT_LE(*groups[i - 1], *groups[i]);
    }
  }
  for (const int count : members) EXPECT_TRUE(count == 3 || count == 4);
  // More groups than gradients, and gradients without bytes.
  EXPECT_EQ(equal_groups(std::vector<GradientSize>{{DataType::float32, 0}}, 5).size(), 1U);
}

}  // namespace
}  // namespace hora
